#include "engine/convert/inspect/compare_checkpoints.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <map>

#include "engine/convert/hf/expert_tensors.h"
#include "engine/convert/inspect/inspection.h"
#include "engine/core/shown_text.h"

namespace loom::checkpoint {
namespace {

constexpr std::string_view kModel = "model.";

TensorList comparable(const OpenedCheckpoint& one, const OpenedCheckpoint& other) {
  if (one.dcp() == nullptr || other.dcp() != nullptr) return one.tensors();
  TensorList model = below(one.tensors(), kModel);
  return model.tensors().empty() ? one.tensors() : model;
}

// A checkpoint has all names of a tied tensor, a Hugging Face folder one of them: the tensor of `others` that `name` of
// `opened` stands for. Null where there is none.
const SourceTensor* counterpart(const OpenedCheckpoint& opened, const std::string& name, const TensorList& others) {
  if (const SourceTensor* same = others.find(name)) return same;
  if (opened.dcp() == nullptr) return nullptr;
  const io::DcpMetadata& metadata = opened.dcp()->metadata();
  const io::DcpItem* own = metadata.find(fmt::format("{}{}", kModel, name));
  if (own == nullptr) return nullptr;
  for (const io::DcpItem& item : metadata.items) {
    if (!item.name.starts_with(kModel) || !io::are_tied(*own, item)) continue;
    if (const SourceTensor* tied = others.find(item.name.substr(kModel.size()))) return tied;
  }
  return nullptr;
}

std::optional<TensorDifference> difference_of(const SourceTensor& a, const SourceTensor& b) {
  TensorDifference found{a.name, a.dtype, b.dtype, a.shape, b.shape, {}};
  if (a.shape != b.shape) return found;
  found.elements = compare(a, b);
  if (a.dtype == b.dtype && found.elements->elements == 0) return std::nullopt;
  return found;
}

std::map<std::string, std::string> values_of(const OpenedCheckpoint& opened, const std::string& filter) {
  std::map<std::string, std::string> values;
  for (const io::DcpItem& item : opened.dcp()->metadata().items) {
    if (!item.is_tensor && matches(item.name, filter)) values[item.name] = opened.dcp()->value(item).repr();
  }
  return values;
}

void add_values(const OpenedCheckpoint& a, const OpenedCheckpoint& b, const std::string& filter,
                CheckpointDifference& found) {
  if (a.dcp() == nullptr || b.dcp() == nullptr) return;
  const auto of_a = values_of(a, filter);
  auto of_b = values_of(b, filter);
  for (const auto& [name, text] : of_a) {
    const std::string other = of_b.contains(name) ? of_b[name] : "";
    if (text != other) found.values.push_back({name, text, other});
    of_b.erase(name);
  }
  for (const auto& [name, text] : of_b) found.values.push_back({name, "", text});
}

std::string number(double value) { return fmt::format("{:.9g}", value); }

std::string elements_text(const TensorDifference& tensor) {
  const Difference& elements = *tensor.elements;
  if (elements.elements == 0) return "all values are equal";
  return fmt::format("{} of {} elements differ, by at most {}; the first at ({}): {} and {}", elements.elements,
                     tensor.shape_a.numel(), number(elements.largest), fmt::join(elements.first, ", "),
                     number(elements.first_a), number(elements.first_b));
}

std::string line_of(const TensorDifference& tensor) {
  std::string text = fmt::format("'{}': ", shown_text(tensor.name));
  if (tensor.dtype_a != tensor.dtype_b) {
    text += fmt::format("{} in A, {} in B; ", name(tensor.dtype_a), name(tensor.dtype_b));
  }
  if (tensor.elements) return text + elements_text(tensor);
  return text + fmt::format("{} in A, {} in B", to_string(tensor.shape_a), to_string(tensor.shape_b));
}

// JSON has no NaN and no inf.
nlohmann::ordered_json json_number(double value) {
  if (std::isfinite(value)) return value;
  return number(value);
}

}  // namespace

CheckpointDifference compare(OpenedCheckpoint& a, OpenedCheckpoint& b, const std::string& filter) {
  a.check_whole();
  b.check_whole();
  const TensorList names_of_a = with_qwen_spelling(comparable(a, b));
  const TensorList of_b = with_experts_as_in(with_qwen_spelling(comparable(b, a)), names_of_a);
  const TensorList of_a = with_experts_as_in(names_of_a, of_b);
  CheckpointDifference found;
  for (const SourceTensor& tensor : of_a.tensors()) {
    if (!matches(tensor.name, filter)) continue;
    const SourceTensor* other = counterpart(a, tensor.name, of_b);
    if (other == nullptr) {
      found.only_a.push_back(tensor.name);
    } else if (auto difference = difference_of(tensor, *other)) {
      found.tensors.push_back(std::move(*difference));
    } else {
      ++found.equal;
    }
  }
  for (const SourceTensor& tensor : of_b.tensors()) {
    if (matches(tensor.name, filter) && counterpart(b, tensor.name, of_a) == nullptr)
      found.only_b.push_back(tensor.name);
  }
  add_values(a, b, filter, found);
  return found;
}

std::string to_text(const CheckpointDifference& difference) {
  std::string text;
  for (const std::string& name : difference.only_a) text += fmt::format("only in A: '{}'\n", shown_text(name));
  for (const std::string& name : difference.only_b) text += fmt::format("only in B: '{}'\n", shown_text(name));
  for (const TensorDifference& tensor : difference.tensors) text += line_of(tensor) + "\n";
  for (const ValueDifference& value : difference.values) {
    text += fmt::format("value '{}': {} in A, {} in B\n", shown_text(value.name), value.a.empty() ? "none" : value.a,
                        value.b.empty() ? "none" : value.b);
  }
  return text + fmt::format("{} tensors are equal, {} differ, {} are only in A, {} only in B; {} values differ\n",
                            difference.equal, difference.tensors.size(), difference.only_a.size(),
                            difference.only_b.size(), difference.values.size());
}

nlohmann::ordered_json to_json(const CheckpointDifference& difference) {
  const auto names = [](const std::vector<std::string>& given) {
    auto list = nlohmann::ordered_json::array();
    for (const std::string& name : given) list.push_back(escaped(name));
    return list;
  };
  nlohmann::ordered_json json{{"equal", difference.empty()},
                              {"equal_tensors", difference.equal},
                              {"only_in_a", names(difference.only_a)},
                              {"only_in_b", names(difference.only_b)}};
  json["tensors"] = nlohmann::ordered_json::array();
  for (const TensorDifference& tensor : difference.tensors) {
    nlohmann::ordered_json one{{"name", escaped(tensor.name)},
                               {"dtype", {name(tensor.dtype_a), name(tensor.dtype_b)}},
                               {"shape", {tensor.shape_a.sizes(), tensor.shape_b.sizes()}}};
    if (tensor.elements) {
      one["elements"] = tensor.elements->elements;
      one["largest"] = json_number(tensor.elements->largest);
      one["first"] = tensor.elements->first;
      one["first_values"] = {json_number(tensor.elements->first_a), json_number(tensor.elements->first_b)};
    }
    json["tensors"].push_back(std::move(one));
  }
  json["values"] = nlohmann::ordered_json::array();
  for (const ValueDifference& value : difference.values) {
    json["values"].push_back({{"name", escaped(value.name)}, {"a", value.a}, {"b", value.b}});
  }
  return json;
}

}  // namespace loom::checkpoint
