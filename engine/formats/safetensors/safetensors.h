// safetensors: the Hugging Face file of named tensors, read through a memory map and written in one pass.
//
// Layout   8 bytes: length H of the header, little endian; H bytes of JSON, padded with spaces so that the data starts
//          at a multiple of 8; then the tensors' bytes, row-major, little endian, one after another without holes.
//          Header: {"__metadata__": {text: text}, name: {"dtype": "F32", "shape": [..], "data_offsets": [begin, end]}}.
// Dtypes   F32 BF16 F16 F64 I64 I32 I16 I8 U8 BOOL.
// Units    rows are indices of dim 0.
// Threads  reading is safe from any number of threads.
// Errors   ConfigError with the path, and the tensor's name where one is at fault. The whole header is checked when the
//          file is opened; after that no read can leave the file.
// Source   huggingface/safetensors, README.md "Format" and safetensors/src/tensor.rs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "engine/core/box.h"
#include "engine/core/dtype.h"
#include "engine/core/shape.h"
#include "engine/io/mapped_file.h"

namespace loom::io {

// A tensor that lies in a file. `bytes` may be unaligned in files of other writers: copy, do not cast.
struct StoredTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::span<const std::byte> bytes;
  std::shared_ptr<const MappedFile> file = {};  // that `bytes` lie in; none: in memory

  // Size of dim 0; a scalar counts as one row.
  std::int64_t row_count() const;
  // The bytes of rows [begin, end). InvariantError unless 0 <= begin <= end <= row_count().
  std::span<const std::byte> rows(std::int64_t begin, std::int64_t end) const;
  // Copies the elements [offset[d], offset[d] + box[d]) of every dim d, row-major, run by run: other bytes of the file
  // are not touched. `to` is as large as the box. Error if the file has changed since it was opened
  // (FileReader), InvariantError for a box that is not inside the tensor.
  void read_box(const Offset& offset, const Shape& box, std::span<std::byte> to) const;
};

class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return file_->path(); }
  // In the order of their bytes. Bytes and references are valid as long as this object, or the object it was moved to.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  // "__metadata__"; usually {"format": "pt"}.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Null when there is no such tensor.
  const StoredTensor* find(std::string_view name) const;
  // Throws ConfigError with the nearest name there is.
  const StoredTensor& at(std::string_view name) const;
  // Rows [begin, end) of dim 0 of tensor `name`: a rank reads only its own.
  std::span<const std::byte> rows(std::string_view name, std::int64_t begin, std::int64_t end) const {
    return at(name).rows(begin, end);
  }

 private:
  std::shared_ptr<const MappedFile> file_;
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string_view, std::size_t> index_;  // keys are tensors_' own names
  std::map<std::string, std::string> metadata_;
};

// Takes the next bytes of the tensor being written.
using ByteSink = std::function<void(std::span<const std::byte>)>;
// Hands a tensor's bytes to the sink, in order, in as many pieces as it likes.
using ByteProducer = std::function<void(const ByteSink&)>;

struct TensorToWrite {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::variant<std::span<const std::byte>, ByteProducer> content;
};

// Writes the file whole or not at all (AtomicFile). Tensors are laid out as the official writer does: widest dtype
// first, then by name, so every tensor is aligned to its element; producers are called in that order.
//
// Throws   ConfigError when the file cannot be created, Error when writing fails (disk full), InvariantError for a name
//          given twice, the name "__metadata__", or content whose size does not match shape and dtype.
void write_safetensors(const std::filesystem::path& path, std::vector<TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace loom::io
