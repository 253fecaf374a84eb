// ParquetFile: the rows of a parquet file, as the values of its leaf columns with their levels.
//
// Fields   the tree of a row's content, as in JSON: objects, lists, values. A list of the format, which is two
//          groups, is one field.
// Leaves   fields without children, numbered from 0 in the order of the file.
// Levels   each entry of a leaf has a definition level, how much of its path is there, and in lists a repetition level:
//          0 begins a row. A value belongs to the entries whose definition level is the leaf's highest one.
// Memory   for each leaf a page and a dictionary at a time, and the requested rows.
// Threads  one thread at a time.
// Errors   FileDamage: not a parquet file, cut short, a wrong checksum, size or level. ConfigError: a feature of the
//          format that this reader lacks, by its name. Both with file, column, row group and byte. Error if the file
//          changes while it is read.
// Source   github.com/apache/parquet-format; the supported features: docs/formats.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace loom::io {

struct ParquetField {
  enum class Kind : std::uint8_t { kObject, kList, kText, kSigned, kUnsigned, kReal, kBoolean, kNull };

  std::string name;  // UTF-8
  Kind kind = Kind::kObject;
  // An entry of a lower definition level has null here.
  std::uint8_t defined = 0;
  // For lists: an entry of a lower definition level has an empty list here; further items have this repetition level.
  std::uint8_t item_defined = 0;
  std::uint8_t item_repeated = 0;
  std::vector<ParquetField> children;  // of a list one, its item
  std::size_t first_leaf = 0;
  std::size_t leaves = 1;
};

// Entries of a leaf, and the values of the entries that have one.
struct LeafEntries {
  std::vector<std::uint8_t> definition;
  std::vector<std::uint8_t> repetition;  // of leaves in lists, else empty
  std::vector<std::int64_t> integers;    // kSigned, kUnsigned (its bits), kBoolean
  std::vector<double> reals;
  std::string text;  // of all values, one behind another
  std::vector<std::uint64_t> text_ends;
};

struct ParquetRows {
  std::uint64_t first_row = 0;  // counted from 0 over the file
  std::uint64_t count = 0;
  std::vector<LeafEntries> leaves;
};

class ParquetFile {
 public:
  explicit ParquetFile(const std::filesystem::path& path);
  ~ParquetFile();
  ParquetFile(const ParquetFile&) = delete;
  ParquetFile& operator=(const ParquetFile&) = delete;

  const std::vector<ParquetField>& fields() const;
  // Full name of a leaf: "messages.list.element.role".
  const std::string& leaf_name(std::size_t leaf) const;
  std::uint64_t rows() const;

  // Further rows of one row group, at least one, until they have `bytes` or are `most`. Nothing behind the last row. A
  // row has 256 MiB at the most, counting 64 bytes for an entry.
  std::optional<ParquetRows> next(std::uint64_t bytes, std::uint64_t most);

  // The bytes of the file that have been read, and all its bytes.
  std::uint64_t done_bytes() const;
  std::uint64_t all_bytes() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace loom::io
