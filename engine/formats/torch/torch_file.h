// Files of torch.save: a tensor, a value without tensors, or a mapping of such, each a separate zip archive.
//
// Tensor   "data.pkl" describes it (dtype, sizes, strides, where in its storage), "data/KEY" holds the storage. Only
//          the requested part is read: a box by its runs, a whole tensor in one piece with its checksum.
// Mapping  of names, whose values are mappings of names to tensors ("model" of Megatron's model_optim_rng.pt; a dict,
//          an OrderedDict or a defaultdict) or anything else. Classes of other libraries may occur beside the tensors:
//          no objects are made of them. Classes that run programs or code (os.system, builtins.eval) are refused,
//          although nothing here would run them.
// Strides  any that address no more elements than the storage has. Rows whose elements are contiguous are read row
//          by row; of other storages that are not row-major the whole is read for each box.
// Dtypes   fp32 bf16 fp16 fp64 int8 int16 int32 int64 uint8 bool, little endian.
// Threads  one thread at a time.
// Errors   FileDamage with file and offset: another format, classes and dtypes that are not supported here, sizes
//          that do not fit the storage, checksums.
// Source   PyTorch, torch/serialization.py and torch/_utils.py (_rebuild_tensor_v2).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/box.h"
#include "engine/core/dtype.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/formats/torch/pickle_reader.h"
#include "engine/formats/torch/plain_value.h"
#include "engine/formats/torch/torch_zip.h"
#include "engine/io/byte_source.h"

namespace loom::io {

// "float32" of torch, in pickles: torch.float32.
std::string_view torch_name(DType dtype);
// None for a name that is not a dtype here ("complex64").
std::optional<DType> parse_torch_dtype(std::string_view name);

class TorchTensor {
 public:
  // Reads the archive's directory and description. `source` outlives it.
  explicit TorchTensor(const ByteSource& source);

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  // Where its storage begins in the source: several tensors may be views of one.
  std::uint64_t storage_begin() const { return storage_->begin; }
  // The same elements in another shape. Nothing where they do not lie row-major, or are not as many.
  std::optional<TorchTensor> reshaped(const Shape& shape) const;

  // The elements [offset[d], offset[d] + box[d]) of every dim, row-major. `to` is as large as the box. With `verify`
  // the whole storage is read and its checksum compared, which costs nothing where the box is all of it.
  void read_box(const Offset& offset, const Shape& box, std::span<std::byte> to, bool verify) const;

 private:
  friend class TorchMapping;
  TorchTensor(std::shared_ptr<const TorchZip> zip, const Pickle& pickle, const PickleNode& node);
  bool is_contiguous() const;
  std::vector<std::byte> storage() const;
  void read_whole(std::span<std::byte> to) const;
  void read_rows(const Offset& offset, const Shape& box, std::span<std::byte> to) const;
  void verify_storage() const;

  std::shared_ptr<const TorchZip> zip_;
  DType dtype_ = DType::kF32;
  Shape shape_;
  std::vector<std::int64_t> strides_;  // elements
  std::int64_t begin_ = 0;             // the first element in the storage
  const TorchZipEntry* storage_ = nullptr;
};

class TorchMapping {
 public:
  // Reads the directory and the description. `source` outlives the tensors.
  explicit TorchMapping(const ByteSource& source);

  // Keys of the mapping itself, in the file's order.
  const std::vector<std::string>& keys() const { return keys_; }
  // Whether a mapping is under a key.
  bool has(std::string_view key) const;
  // The tensors of the mapping under a key; FileDamage where there is no mapping. Other values in it, and the data
  // that TransformerEngine keeps beside its weights ("..._extra_state"), are left out.
  const std::map<std::string, TorchTensor, std::less<>>& tensors(std::string_view key) const;

 private:
  std::string where_;
  std::vector<std::string> keys_;
  std::map<std::string, std::map<std::string, TorchTensor, std::less<>>, std::less<>> tensors_;
};

// A value without tensors. OrderedDict and argparse.Namespace become dicts, sets lists, dtypes and other classes their
// names. At most a million items, 64 levels, a description of 64 MiB.
PlainValue read_torch_value(const ByteSource& source);

// Write an archive in one pass and return its size in bytes. The content of a tensor is its elements,
// row-major, in as many pieces as `content` likes.
std::uint64_t write_torch_tensor(const ByteSink& sink, DType dtype, const Shape& shape, const ByteProducer& content);
// The size that write_torch_tensor() will return.
std::uint64_t torch_tensor_bytes(DType dtype, const Shape& shape);
std::uint64_t write_torch_value(const ByteSink& sink, const PlainValue& value);

// An entry of a mapping: tensors by name, as an OrderedDict; else a value. With `as_attributes` a dict is written as an
// OrderedDict that has its entries as attributes too: readers of an argparse.Namespace accept it, and so does
// weights_only.
struct TorchEntry {
  std::string key;
  PlainValue value = {};
  bool as_attributes = false;
  std::optional<std::vector<TensorToWrite>> tensors = {};
};
std::uint64_t write_torch_mapping(const ByteSink& sink, const std::vector<TorchEntry>& entries);

}  // namespace loom::io
