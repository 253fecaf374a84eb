// ColumnChunkReader: the entries of one leaf in one row group, row by row, a page at a time. Private to engine/formats.
//
// Errors   as ParquetFile, with column, row group and the byte where the page begins.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/formats/parquet/bit_runs.h"
#include "engine/formats/parquet/page_values.h"
#include "engine/formats/parquet/parquet_codec.h"
#include "engine/io/mapped_file.h"

namespace loom::io {

class ColumnChunkReader {
 public:
  // The arguments outlive it. `file` is the file's size, `group` the number of the row group.
  ColumnChunkReader(const FileReader& reader, const MappedFile& file, const ParquetLeaf& leaf, const ColumnChunk& chunk,
                    std::size_t group);

  // Appends the entries of the next row. Returns about how many bytes they need.
  std::uint64_t read_row(LeafEntries& to);
  // Throws unless every entry was read.
  void expect_end();
  std::uint64_t done_bytes() const { return at_ - begin_; }

 private:
  struct Entry {
    std::uint8_t definition = 0;
    std::uint8_t repetition = 0;
  };

  bool peek();
  Entry take();
  std::uint64_t append(const Entry& entry, LeafEntries& to);
  void next_page();
  void load_page();
  PageHead read_head();
  std::string_view read_body(const PageHead& head);
  void load_dictionary(const PageHead& head, std::string_view body);
  void load_data(const PageHead& head, std::string_view body);
  void load_data_v2(const PageHead& head, std::string_view body);
  void begin_values(const PageHead& head, std::string_view values);
  std::string_view decompress(std::string_view bytes, std::size_t size);
  static std::uint8_t next_level(std::optional<BitRuns>& levels, std::uint8_t most);
  template <class Action>
  auto with_place(Action&& action);
  std::string place() const;

  const FileReader& reader_;
  const MappedFile& file_;
  const ParquetLeaf& leaf_;
  const ColumnChunk& chunk_;
  const std::size_t group_;
  std::uint64_t begin_ = 0;  // of the chunk in the file
  std::uint64_t end_ = 0;
  std::uint64_t at_ = 0;  // the next page
  std::uint64_t page_at_ = 0;
  std::uint64_t entries_left_ = 0;  // of the chunk, after this page
  std::optional<Dictionary> dictionary_;

  std::string head_bytes_;
  PageBuffer body_;
  PageBuffer decompressed_;
  std::uint64_t page_entries_left_ = 0;
  std::optional<BitRuns> definition_;
  std::optional<BitRuns> repetition_;
  Encoding encoding_ = Encoding::kPlain;
  std::string_view value_bytes_;
  std::unique_ptr<PageValues> values_;  // made with the page's first value: a page without one may have no bytes
  std::optional<Entry> peeked_;
};

}  // namespace loom::io
