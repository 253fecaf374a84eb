// OutputTensor: a tensor to be written, assembled from boxes of tensors that are read; and TensorCopy, which passes
// its bytes on in pieces, converted if the dtype differs.
//
// Memory   two pieces of kPieceBytes, whatever the tensor's size.
// Threads  one thread at a time.
// Errors   the readers' errors; an exception from the watcher ends the copy.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/convert/tensor_source.h"
#include "engine/formats/safetensors/safetensors.h"

namespace loom::checkpoint {

// A box of a tensor that outlives it.
struct TensorPart {
  const SourceTensor* from = nullptr;
  Offset offset;
  Shape shape;
};

struct OutputTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<TensorPart> parts;  // their elements, one part behind another, are the tensor's elements

  std::uint64_t size_bytes() const;
};

// All of one tensor, under another name or shape.
OutputTensor whole(const SourceTensor& from, std::string name);

// Gets the number of bytes of the conversion written so far, and of all; may throw to end it.
using CopyWatcher = std::function<void(std::uint64_t done_bytes, std::uint64_t all_bytes)>;

// Finite values that became inf because their dtype has no room for them.
struct Overflow {
  std::string name;
  std::int64_t elements = 0;
};

class TensorCopy {
 public:
  TensorCopy(std::uint64_t all_bytes, CopyWatcher watcher) : all_bytes_(all_bytes), watcher_(std::move(watcher)) {}

  // Valid as long as this object and `tensor`.
  io::ByteProducer producer(const OutputTensor& tensor);

  std::uint64_t done_bytes() const { return done_bytes_; }
  const std::vector<Overflow>& overflows() const { return overflows_; }

 private:
  std::int64_t copy(const TensorPart& part, DType dtype, const io::ByteSink& sink);

  const std::uint64_t all_bytes_;
  const CopyWatcher watcher_;
  std::uint64_t done_bytes_ = 0;
  std::vector<Overflow> overflows_;
};

}  // namespace loom::checkpoint
