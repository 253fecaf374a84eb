// IndexedDataset: sequences of token ids in Megatron's pair of files PREFIX.bin and PREFIX.idx, mapped read-only.
//
// Layout    docs/formats.md, "Indexed data sets". Sequences are numbered from 0; a document is a run of sequences, and
//           may have none. A sequence may have no token.
// Checked   when the pair is opened, before anything is used: every field of the header, the size of .idx, each length,
//           offset and document, and that each sequence lies in .bin. After that no read can leave the files.
// Changed   check_unchanged() finds what others did to the files since; without it bytes of a file that was written to
//           appear without a word, and reading a file that was shortened ends the process.
// Threads   reading is safe from any number of threads.
// Errors    ConfigError with the file, the field and its byte, both values; Error where a file changed later.
// Source    megatron/core/datasets/indexed_dataset.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "engine/io/mapped_file.h"

namespace loom::io {

// The values are the codes of the format.
enum class IndexedDtype : std::uint8_t {
  kU8 = 1,
  kI8 = 2,
  kI16 = 3,
  kI32 = 4,
  kI64 = 5,
  kF64 = 6,
  kF32 = 7,
  kU16 = 8,
};

// "uint16", as numpy writes it.
std::string_view name_of(IndexedDtype dtype);
std::int64_t element_bytes(IndexedDtype dtype);
// The type that Megatron's own tool writes for a vocabulary: uint16 below 65500 ids, else int32.
IndexedDtype dtype_of_vocabulary(std::int64_t ids);

std::filesystem::path bin_path(const std::filesystem::path& prefix);
std::filesystem::path idx_path(const std::filesystem::path& prefix);

class IndexedDataset {
 public:
  explicit IndexedDataset(std::filesystem::path prefix);

  const std::filesystem::path& prefix() const { return prefix_; }
  IndexedDtype dtype() const { return dtype_; }
  std::int64_t sequence_count() const { return sequence_count_; }
  std::int64_t document_count() const { return entry_count_ - 1; }
  // The sum over all sequences.
  std::int64_t token_count() const { return token_count_; }
  // A number for each sequence, in files of several modalities.
  bool has_modes() const { return has_modes_; }

  // Before: 0 <= sequence < sequence_count().
  std::int32_t length(std::int64_t sequence) const;
  std::int8_t mode(std::int64_t sequence) const;
  // The first sequence of a document, 0 <= document <= document_count(); document_count() gives sequence_count().
  std::int64_t document_begin(std::int64_t document) const;
  // The lengths, int32 each and not aligned.
  std::span<const std::byte> length_bytes() const;

  // All bytes that the .idx describes, and the bytes of a sequence; elements may be unaligned.
  std::span<const std::byte> bytes() const { return tokens_; }
  std::span<const std::byte> bytes(std::int64_t sequence) const;
  // Tokens [offset, offset + to.size()) of a sequence. InvariantError for a range that leaves it; ConfigError for a
  // file of floating-point numbers and for an id that int32 does not hold.
  void read(std::int64_t sequence, std::int64_t offset, std::span<std::int32_t> to) const;

  // Error unless both files are what they were when they were opened. Costs two stat().
  void check_unchanged() const;

 private:
  void check_header();
  void check_sizes();
  void check_sequences();
  void check_documents() const;

  std::filesystem::path prefix_;
  MappedFile idx_;
  MappedFile bin_;
  std::span<const std::byte> tokens_;
  IndexedDtype dtype_ = IndexedDtype::kI32;
  std::int64_t sequence_count_ = 0;
  std::int64_t entry_count_ = 0;  // of the document index
  std::int64_t token_count_ = 0;
  bool has_modes_ = false;
};

}  // namespace loom::io
