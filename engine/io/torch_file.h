// What torch.save wrote: a tensor, or a value without tensors, each a zip archive of its own.
//
// Tensor   "data.pkl" describes it (dtype, sizes, strides, where in its storage), "data/KEY" holds the storage. Only
//          what is asked for is read: a box by its runs, a whole tensor in one piece with its checksum.
// Strides  any whose elements are no more than those of the storage; a storage that is not row-major is read whole.
// Dtypes   fp32 bf16 fp16 fp64 int8 int16 int32 int64 uint8 bool, little endian.
// Threads  one thread at a time.
// Errors   FileDamage with file and offset: what is no torch.save, classes and dtypes that are not read here, sizes
//          that do not fit the storage, checksums.
// Source   PyTorch, torch/serialization.py and torch/_utils.py (_rebuild_tensor_v2).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/core/box.h"
#include "engine/core/dtype.h"
#include "engine/io/byte_source.h"
#include "engine/io/plain_value.h"
#include "engine/io/torch_zip.h"

namespace loom::io {

// "float32" of torch, in pickles: torch.float32.
std::string_view torch_name(DType dtype);
// Nothing for a name that is no dtype here ("complex64").
std::optional<DType> parse_torch_dtype(std::string_view name);

class TorchTensor {
 public:
  // Reads the archive's directory and description. `source` outlives it.
  explicit TorchTensor(const ByteSource& source);

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }

  // The elements [offset[d], offset[d] + box[d]) of every dim, row-major. `to` is as large as the box. With `verify`
  // the whole storage is read and its checksum compared, which costs nothing where the box is all of it.
  void read_box(const Offset& offset, const Shape& box, std::span<std::byte> to, bool verify) const;

 private:
  bool is_contiguous() const;
  std::vector<std::byte> storage() const;
  void read_whole(std::span<std::byte> to) const;
  void verify_storage() const;

  TorchZip zip_;
  DType dtype_ = DType::kF32;
  Shape shape_;
  std::vector<std::int64_t> strides_;  // elements
  std::int64_t begin_ = 0;             // the first element in the storage
  const TorchZipEntry* storage_ = nullptr;
};

// A value without tensors. OrderedDict and argparse.Namespace become dicts, sets lists, dtypes and other classes their
// names. At most a million items, 64 levels, a description of 64 MiB.
PlainValue read_torch_value(const ByteSource& source);

// Write an archive in one pass; what comes back is its size in bytes. The content of a tensor is its elements,
// row-major, in as many pieces as `content` likes.
std::uint64_t write_torch_tensor(const ByteSink& sink, DType dtype, const Shape& shape, const ByteProducer& content);
// What write_torch_tensor() will give.
std::uint64_t torch_tensor_bytes(DType dtype, const Shape& shape);
std::uint64_t write_torch_value(const ByteSink& sink, const PlainValue& value);

}  // namespace loom::io
