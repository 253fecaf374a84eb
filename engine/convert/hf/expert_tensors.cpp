#include "engine/convert/hf/expert_tensors.h"

#include <fmt/ranges.h>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "models/decoder/expert_weights.h"
#include "models/hf/published_names.h"

namespace loom::checkpoint {
namespace {

SourceTensor part_of(const SourceTensor& all, const models::ExpertPart& part) {
  const auto read = [all = all.read, expert = part.expert, row = part.row](const Offset& offset, const Shape& box,
                                                                           std::span<std::byte> to) {
    all({expert, row + offset[0], offset[1]}, {1, box[0], box[1]}, to);
  };
  return {part.name, all.dtype, part.shape, all.file, read};
}

// The rows of parameter paths[i] of a tensor that holds those of all `paths`.
SourceTensor rows_of_part(const SourceTensor& all, const std::vector<std::string>& paths, std::size_t i) {
  SourceTensor part = all;
  part.name = paths[i];
  if (paths.size() == 1) return part;
  if (all.shape.ndim() == 0 || all.shape[0] % std::ssize(paths) != 0) {
    config_error("{}: '{}' {} has the rows of {}, and {} does not divide them; the file is of another model", all.file,
                 shown_text(all.name), to_string(all.shape), fmt::join(paths, ", "), paths.size());
  }
  part.shape[0] = all.shape[0] / std::ssize(paths);
  const std::int64_t first = static_cast<std::int64_t>(i) * part.shape[0];
  part.read = [read = all.read, first](Offset offset, const Shape& box, std::span<std::byte> to) {
    offset[0] += first;
    read(offset, box, to);
  };
  return part;
}

constexpr std::string_view kFirstGate = ".0.gate_proj.weight";

// The tensor of all experts whose parts the list has, or none: `shape` is [E, rows, columns].
std::optional<OutputTensor> fused(const TensorList& list, const std::string& name, const Shape& shape) {
  OutputTensor output{name, DType::kF32, shape, {}};
  for (const models::ExpertPart& part : models::expert_parts(name, shape)) {
    const SourceTensor* tensor = list.find(part.name);
    if (tensor == nullptr || tensor->shape != part.shape) return std::nullopt;
    if (!output.parts.empty() && tensor->dtype != output.dtype) return std::nullopt;
    output.dtype = tensor->dtype;
    output.parts.push_back({tensor, {0, 0}, tensor->shape});
  }
  return output;
}

std::int64_t count_experts(const TensorList& list, const std::string& experts) {
  std::int64_t count = 0;
  while (list.find(fmt::format("{}.{}.gate_proj.weight", experts, count)) != nullptr) ++count;
  return count;
}

}  // namespace

FusedExperts fused_experts(const TensorList& list) {
  FusedExperts found;
  for (const SourceTensor& tensor : list.tensors()) {
    if (!tensor.name.ends_with(kFirstGate) || tensor.shape.ndim() != 2) continue;
    const std::string experts = tensor.name.substr(0, tensor.name.size() - kFirstGate.size());
    const std::int64_t count = count_experts(list, experts), rows = tensor.shape[0], columns = tensor.shape[1];
    auto gate_up = fused(list, experts + ".gate_up_proj", {count, 2 * rows, columns});
    auto down = fused(list, experts + ".down_proj", {count, columns, rows});
    if (!gate_up || !down) continue;
    for (OutputTensor* output : {&*gate_up, &*down}) {
      for (const TensorPart& part : output->parts) found.taken.insert(part.from->name);
      found.tensors.push_back(std::move(*output));
    }
  }
  return found;
}

TensorList with_qwen_spelling(const TensorList& list) {
  const models::PublishedNames names = models::published_names_in(list.names());
  std::vector<SourceTensor> tensors;
  for (const SourceTensor& tensor : list.tensors()) {
    const std::vector<std::string> paths = models::paths_of_published(names, tensor.name);
    for (std::size_t i = 0; i < paths.size(); ++i) tensors.push_back(rows_of_part(tensor, paths, i));
  }
  return TensorList(std::move(tensors));
}

TensorList with_experts_as_in(const TensorList& list, const TensorList& like) {
  std::vector<SourceTensor> tensors;
  for (const SourceTensor& tensor : list.tensors()) {
    const auto parts = models::expert_parts(tensor.name, tensor.shape);
    if (parts.empty() || like.find(parts.front().name) == nullptr) {
      tensors.push_back(tensor);
      continue;
    }
    for (const models::ExpertPart& part : parts) tensors.push_back(part_of(tensor, part));
  }
  return TensorList(std::move(tensors));
}

}  // namespace loom::checkpoint
