#include "engine/convert/output_tensor.h"

#include <algorithm>
#include <utility>

#include "engine/convert/element_convert.h"

namespace loom::checkpoint {

std::uint64_t OutputTensor::size_bytes() const {
  return static_cast<std::uint64_t>(shape.numel()) * static_cast<std::uint64_t>(element_bytes(dtype));
}

OutputTensor whole(const SourceTensor& from, std::string name) {
  const Offset begin(static_cast<std::size_t>(from.shape.ndim()), 0);
  return {std::move(name), from.dtype, from.shape, {{&from, begin, from.shape}}};
}

std::int64_t TensorCopy::copy(const TensorPart& part, DType dtype, const io::ByteSink& sink) {
  const DType from = part.from->dtype;
  const std::int64_t most = kPieceBytes / std::max(element_bytes(from), element_bytes(dtype));
  std::vector<std::byte> read;
  std::vector<std::byte> converted;
  std::int64_t overflowed = 0;
  for_each_piece(part.offset, part.shape, most, [&](const Offset& offset, const Shape& box) {
    const auto elems = static_cast<std::size_t>(box.numel());
    read.resize(elems * static_cast<std::size_t>(element_bytes(from)));
    part.from->read(offset, box, read);
    if (from != dtype) {
      converted.resize(elems * static_cast<std::size_t>(element_bytes(dtype)));
      overflowed += convert_elements(from, read, dtype, converted);
    }
    const std::vector<std::byte>& bytes = from == dtype ? read : converted;
    sink(bytes);
    done_bytes_ += bytes.size();
    if (watcher_) watcher_(done_bytes_, all_bytes_);
  });
  return overflowed;
}

io::ByteProducer TensorCopy::producer(const OutputTensor& tensor) {
  return [this, &tensor](const io::ByteSink& sink) {
    std::int64_t overflowed = 0;
    for (const TensorPart& part : tensor.parts) overflowed += copy(part, tensor.dtype, sink);
    if (overflowed > 0) overflows_.push_back({tensor.name, overflowed});
  };
}

}  // namespace loom::checkpoint
