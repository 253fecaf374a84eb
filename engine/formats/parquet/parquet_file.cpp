#include "engine/formats/parquet/parquet_file.h"

#include "engine/core/shown_text.h"
#include "engine/formats/parquet/column_chunk_reader.h"
#include "engine/io/byte_source.h"

namespace loom::io {
namespace {

constexpr std::string_view kMagic = "PAR1";
constexpr std::string_view kEncryptedMagic = "PARE";
constexpr std::size_t kTailBytes = 8;  // u4 size of the metadata, the magic
constexpr std::size_t kLeastBytes = kMagic.size() + kTailBytes;
constexpr std::uint32_t kMostMetadataBytes = std::uint32_t{128} << 20;

template <class... Args>
[[noreturn]] void damaged(const std::string& file, fmt::format_string<Args...> format, Args&&... args) {
  throw FileDamage(fmt::format("{}: {}", file, fmt::format(format, std::forward<Args>(args)...)));
}

void check_magic(const std::string& file, std::string_view first, std::string_view last) {
  if (first == kEncryptedMagic || last == kEncryptedMagic) {
    config_error("{}: the file is encrypted, which is not read; write it without encryption", file);
  }
  if (first == kMagic && last == kMagic) return;
  damaged(file, "a parquet file begins and ends with PAR1, this one with '{}' and '{}'", shown_text(first),
          shown_text(last));
}

FileMetadata read_metadata(const FileReader& reader, std::uint64_t size, const std::string& file) {
  if (size < kLeastBytes) damaged(file, "the file has {} bytes; a parquet file has {} at least", size, kLeastBytes);
  std::string first(kMagic.size(), '\0');
  std::string tail(kTailBytes, '\0');
  reader.read(0, std::as_writable_bytes(std::span(first)));
  reader.read(size - kTailBytes, std::as_writable_bytes(std::span(tail)));
  check_magic(file, first, std::string_view(tail).substr(4));
  const auto bytes = ByteCursor(tail).number<std::uint32_t>();
  if (bytes > size - kLeastBytes) {
    damaged(file, "metadata of {} bytes is claimed, the file has {}", bytes, size);
  }
  if (bytes > kMostMetadataBytes) {
    config_error("{}: metadata of {} bytes; at most {} are read, so write fewer row groups", file, bytes,
                 kMostMetadataBytes);
  }
  std::string metadata(bytes, '\0');
  reader.read(size - kTailBytes - bytes, std::as_writable_bytes(std::span(metadata)));
  return parse_file_metadata(metadata);
}

void check_chunk(const std::string& file, const ColumnChunk& chunk, const ParquetLeaf& leaf, std::int64_t rows) {
  const std::string column = shown_text(leaf.name);
  if (chunk.elsewhere) {
    config_error("{}: column '{}' is in another file, which is not read; write one file", file, column);
  }
  if (chunk.encrypted) {
    config_error("{}: column '{}' is encrypted, which is not read; write it without encryption", file, column);
  }
  if (chunk.type != leaf.type) {
    bad_bytes("column '{}' is {} in the schema and {} in a row group", column, name_of_type(leaf.type),
              name_of_type(chunk.type));
  }
  if (!is_known_codec(chunk.codec)) {
    config_error("{}: column '{}' is compressed by {}, which is not read; use SNAPPY, GZIP, ZSTD, LZ4_RAW or none",
                 file, column, name_of_codec(chunk.codec));
  }
  const bool fits = leaf.most_repetition > 0 ? chunk.values >= rows : chunk.values == rows;
  if (!fits) bad_bytes("column '{}' has {} values for {} rows", column, chunk.values, rows);
}

void check_groups(const std::string& file, const FileMetadata& metadata, const ParquetSchema& schema) {
  std::int64_t left = metadata.rows;
  for (std::size_t i = 0; i < metadata.row_groups.size(); ++i) {
    const RowGroup& group = metadata.row_groups[i];
    if (group.columns.size() != schema.leaves.size()) {
      bad_bytes("row group {} has {} columns, the schema {}", i, group.columns.size(), schema.leaves.size());
    }
    if (group.rows < 0 || group.rows > left) bad_bytes("row group {} has {} rows of {} left", i, group.rows, left);
    left -= group.rows;
    for (std::size_t leaf = 0; leaf < group.columns.size(); ++leaf) {
      check_chunk(file, group.columns[leaf], schema.leaves[leaf], group.rows);
    }
  }
  if (left != 0) bad_bytes("{} rows, {} of them in no row group", metadata.rows, left);
  if (metadata.rows > 0 && schema.leaves.empty()) bad_bytes("{} rows without a column", metadata.rows);
}

}  // namespace

class ParquetFile::State {
 public:
  explicit State(const std::filesystem::path& path) : file_(path), reader_(file_) {
    const std::string name = path.string();
    try {
      metadata_ = read_metadata(reader_, all_bytes(), name);
      if (metadata_.encrypted) {
        config_error("{}: the file is encrypted, which is not read; write it without encryption", name);
      }
      schema_ = make_schema(metadata_.schema, name);
      check_groups(name, metadata_, schema_);
    } catch (const BadBytes& problem) {
      throw FileDamage(fmt::format("{}: its metadata: {}", name, problem.what()));
    }
  }

  const ParquetSchema& schema() const { return schema_; }
  std::uint64_t rows() const { return static_cast<std::uint64_t>(metadata_.rows); }
  std::uint64_t all_bytes() const { return file_.bytes().size(); }

  std::uint64_t done_bytes() const {
    if (row_ == rows()) return all_bytes();
    std::uint64_t done = done_bytes_;
    for (const auto& column : columns_) done += column->done_bytes();
    return std::min(done, all_bytes());
  }

  std::optional<ParquetRows> next(std::uint64_t bytes, std::uint64_t most) {
    while (group_rows_left_ == 0) {
      if (!columns_.empty()) end_group();
      if (group_ == metadata_.row_groups.size()) return std::nullopt;
      begin_group();
    }
    return read_rows(bytes, std::min(most, group_rows_left_));
  }

 private:
  void begin_group() {
    const RowGroup& group = metadata_.row_groups[group_];
    for (std::size_t leaf = 0; leaf < schema_.leaves.size(); ++leaf) {
      columns_.push_back(
          std::make_unique<ColumnChunkReader>(reader_, file_, schema_.leaves[leaf], group.columns[leaf], group_));
    }
    group_rows_left_ = static_cast<std::uint64_t>(group.rows);
    ++group_;
  }

  void end_group() {
    for (const auto& column : columns_) {
      column->expect_end();
      done_bytes_ += column->done_bytes();
    }
    columns_.clear();
  }

  ParquetRows read_rows(std::uint64_t bytes, std::uint64_t most) {
    ParquetRows rows{.first_row = row_, .count = 0, .leaves = std::vector<LeafEntries>(columns_.size())};
    for (std::uint64_t have = 0; rows.count < most && (rows.count == 0 || have < bytes); ++rows.count) {
      for (std::size_t leaf = 0; leaf < columns_.size(); ++leaf) have += columns_[leaf]->read_row(rows.leaves[leaf]);
    }
    row_ += rows.count;
    group_rows_left_ -= rows.count;
    return rows;
  }

  io::MappedFile file_;
  FileReader reader_;
  FileMetadata metadata_;
  ParquetSchema schema_;
  std::size_t group_ = 0;  // the next one
  std::uint64_t group_rows_left_ = 0;
  std::uint64_t row_ = 0;
  std::uint64_t done_bytes_ = 0;  // of the groups that are done
  std::vector<std::unique_ptr<ColumnChunkReader>> columns_;
};

ParquetFile::ParquetFile(const std::filesystem::path& path) : state_(std::make_unique<State>(path)) {}
ParquetFile::~ParquetFile() = default;

const std::vector<ParquetField>& ParquetFile::fields() const { return state_->schema().fields; }
const std::string& ParquetFile::leaf_name(std::size_t leaf) const { return state_->schema().leaves.at(leaf).name; }
std::uint64_t ParquetFile::rows() const { return state_->rows(); }
std::uint64_t ParquetFile::done_bytes() const { return state_->done_bytes(); }
std::uint64_t ParquetFile::all_bytes() const { return state_->all_bytes(); }

std::optional<ParquetRows> ParquetFile::next(std::uint64_t bytes, std::uint64_t most) {
  return state_->next(bytes, most);
}

}  // namespace loom::io
