#include "engine/convert/tensor_source.h"

#include <algorithm>
#include <utility>

namespace loom::checkpoint {
namespace {

SourceTensor stored(const io::StoredTensor& tensor) {
  return {
      tensor.name, tensor.dtype, tensor.shape, tensor.file ? tensor.file->path().filename().string() : "",
      [&tensor](const Offset& offset, const Shape& box, std::span<std::byte> to) { tensor.read_box(offset, box, to); }};
}

}  // namespace

std::uint64_t SourceTensor::size_bytes() const {
  return static_cast<std::uint64_t>(shape.numel()) * static_cast<std::uint64_t>(element_bytes(dtype));
}

TensorList::TensorList(std::vector<SourceTensor> tensors) : tensors_(std::move(tensors)) {
  for (std::size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].name, i);
}

const SourceTensor* TensorList::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

std::vector<std::string> TensorList::names() const {
  std::vector<std::string> names;
  for (const SourceTensor& tensor : tensors_) names.push_back(tensor.name);
  return names;
}

TensorList tensors_of(const io::HfWeights& weights) {
  std::vector<SourceTensor> tensors;
  for (const std::string& name : weights.names()) {
    tensors.push_back(stored(weights.at(name)));
    tensors.back().name = name;
  }
  return TensorList(std::move(tensors));
}

TensorList tensors_of(const io::SafetensorsFile& file) {
  std::vector<SourceTensor> tensors;
  for (const io::StoredTensor& tensor : file.tensors()) tensors.push_back(stored(tensor));
  return TensorList(std::move(tensors));
}

TensorList tensors_of(const io::DcpFolder& folder) {
  std::vector<SourceTensor> tensors;
  for (const io::DcpItem& item : folder.metadata().items) {
    if (!item.is_tensor) continue;
    const std::string file = item.pieces.empty() ? "" : folder.metadata().files[item.pieces.front().file];
    tensors.push_back({item.name, item.dtype, item.shape, file,
                       [&folder, &item](const Offset& offset, const Shape& box, std::span<std::byte> to) {
                         folder.read_box(item, offset, box, to);
                       }});
  }
  return TensorList(std::move(tensors));
}

TensorList below(const TensorList& list, std::string_view prefix) {
  std::vector<SourceTensor> tensors;
  for (const SourceTensor& tensor : list.tensors()) {
    if (!tensor.name.starts_with(prefix)) continue;
    tensors.push_back(tensor);
    tensors.back().name.erase(0, prefix.size());
  }
  return TensorList(std::move(tensors));
}

void for_each_piece(const Offset& offset, const Shape& box, std::int64_t most,
                    const std::function<void(const Offset& offset, const Shape& piece)>& use) {
  if (box.numel() == 0) return;
  if (box.ndim() == 0) return use(offset, box);
  int cut = 0;  // the outermost dim of which one index is no more than a piece
  std::int64_t inner = box.row_elems();
  while (inner > most && cut + 1 < box.ndim()) inner /= box[++cut];
  const std::int64_t step = std::max<std::int64_t>(1, most / inner);
  Shape piece = box;
  for (int d = 0; d < cut; ++d) piece[d] = 1;
  Offset at = offset;
  const auto axis = static_cast<std::size_t>(cut);
  const auto behind = [&](std::size_t d) { return at[d] == offset[d] + box[static_cast<int>(d)]; };
  for (;;) {
    piece[cut] = std::min(step, offset[axis] + box[cut] - at[axis]);
    use(at, piece);
    at[axis] += piece[cut];
    for (std::size_t d = axis; behind(d); --d) {
      if (d == 0) return;
      at[d] = offset[d];
      ++at[d - 1];
    }
  }
}

}  // namespace loom::checkpoint
