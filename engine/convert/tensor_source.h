// Tensors that are read from files of any kind, box by box: a Hugging Face folder, safetensors, a
// checkpoint of torch.distributed.checkpoint.
//
// Life     the sources of a list outlive it.
// Threads  one thread at a time.
// Errors   the errors of the reader beneath (io::HfWeights, io::SafetensorsFile, io::DcpFolder).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/box.h"
#include "engine/core/dtype.h"
#include "engine/core/shape.h"
#include "engine/formats/dcp/dcp_folder.h"
#include "engine/formats/safetensors/hf_weights.h"

namespace loom::checkpoint {

struct SourceTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::string file;  // the name of the file that it begins in
  // Reads the elements of a box, row-major, in `dtype`; `to` has exactly their bytes.
  std::function<void(const Offset& offset, const Shape& box, std::span<std::byte> to)> read;

  std::uint64_t size_bytes() const;
};

class TensorList {
 public:
  TensorList() = default;
  explicit TensorList(std::vector<SourceTensor> tensors);

  const std::vector<SourceTensor>& tensors() const { return tensors_; }
  // Null if there is none.
  const SourceTensor* find(std::string_view name) const;
  std::vector<std::string> names() const;

 private:
  std::vector<SourceTensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
};

TensorList tensors_of(const io::HfWeights& weights);
TensorList tensors_of(const io::SafetensorsFile& file);
// All tensors, optimizer states too, under their flat names.
TensorList tensors_of(const io::DcpFolder& folder);
// The tensors whose name begins with `prefix`, without it.
TensorList below(const TensorList& list, std::string_view prefix);

// The most bytes of a tensor that are read at once.
inline constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20;

// Cuts the box of a tensor into boxes of at most `most` elements (one, if that is less), in row-major order: their
// elements, one box behind another, are the elements of the whole box. None for an empty box.
void for_each_piece(const Offset& offset, const Shape& box, std::int64_t most,
                    const std::function<void(const Offset& offset, const Shape& piece)>& use);

}  // namespace loom::checkpoint
