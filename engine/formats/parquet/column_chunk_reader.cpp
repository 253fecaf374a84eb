#include "engine/formats/parquet/column_chunk_reader.h"

#include <algorithm>
#include <bit>

#include "engine/core/shown_text.h"
#include "engine/io/byte_source.h"
#include "engine/io/checksum.h"

namespace loom::io {
namespace {

constexpr std::uint64_t kEntryBytes = 64;
constexpr std::uint64_t kMostRowBytes = std::uint64_t{256} << 20;
constexpr std::size_t kHeadBytes = 512;
constexpr std::size_t kMostHeadBytes = std::size_t{64} << 20;  // statistics may have whole texts

int level_bits(std::uint8_t most) { return std::bit_width(static_cast<unsigned>(most)); }

std::span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::uint64_t first_byte(const ColumnChunk& chunk) {
  const std::int64_t dictionary = chunk.dictionary_page_at.value_or(0);
  const bool in_front = dictionary > 0 && dictionary < chunk.data_page_at;
  const std::int64_t first = in_front ? dictionary : chunk.data_page_at;
  if (first < 4 || chunk.compressed_bytes < 0) {
    bad_bytes("the metadata places {} bytes at byte {}", chunk.compressed_bytes, first);
  }
  return static_cast<std::uint64_t>(first);
}

// Levels of a data page v1: their bytes with the length in front.
std::string_view sized_levels(ByteCursor& body, Encoding encoding) {
  if (encoding != Encoding::kRle) bad_bytes("levels are {}; only RLE is read", name_of_encoding(encoding));
  return body.take(body.number<std::uint32_t>());
}

void check_head(const PageHead& head, std::uint64_t left) {
  if (head.uncompressed_bytes < 0 || head.compressed_bytes < 0) {
    bad_bytes("a page of {} bytes that becomes {}", head.compressed_bytes, head.uncompressed_bytes);
  }
  if (static_cast<std::uint64_t>(head.compressed_bytes) > left) {
    bad_bytes("a page of {} bytes where the column has {} left", head.compressed_bytes, left);
  }
  if (head.type != PageType::kIndex && (!head.described || head.values < 0))
    bad_bytes("a page without its number of values");
}

}  // namespace

std::string ColumnChunkReader::place() const {
  return fmt::format("{}: column '{}', row group {}, byte {}", file_.path().string(), shown_text(leaf_.name), group_,
                     page_at_);
}

template <class Action>
auto ColumnChunkReader::with_place(Action&& action) {
  try {
    return action();
  } catch (const BadBytes& problem) {
    throw FileDamage(fmt::format("{}: {}", place(), problem.what()));
  }
}

ColumnChunkReader::ColumnChunkReader(const FileReader& reader, const MappedFile& file, const ParquetLeaf& leaf,
                                     const ColumnChunk& chunk, std::size_t group)
    : reader_(reader), file_(file), leaf_(leaf), chunk_(chunk), group_(group) {
  with_place([&] {
    if (chunk.values == 0) return;  // may have no place
    begin_ = at_ = page_at_ = first_byte(chunk);
    const std::uint64_t size = file.bytes().size();
    const auto bytes = static_cast<std::uint64_t>(chunk.compressed_bytes);
    if (begin_ > size || bytes > size - begin_) {
      bad_bytes("{} bytes from byte {} on are claimed, the file has {}", bytes, begin_, size);
    }
    end_ = begin_ + bytes;
    entries_left_ = static_cast<std::uint64_t>(chunk.values);
  });
}

std::uint64_t ColumnChunkReader::read_row(LeafEntries& to) {
  return with_place([&] {
    if (!peek()) bad_bytes("the column ends before its row group");
    if (peeked_->repetition != 0) bad_bytes("a row begins with repetition level {}", peeked_->repetition);
    std::uint64_t bytes = 0;
    do {
      bytes += append(take(), to);
      if (bytes > kMostRowBytes) bad_bytes("a row of more than {} bytes; split it", kMostRowBytes);
    } while (leaf_.most_repetition > 0 && peek() && peeked_->repetition != 0);
    return bytes;
  });
}

void ColumnChunkReader::expect_end() {
  with_place([&] {
    if (peek()) bad_bytes("the column has more rows than its row group");
  });
}

bool ColumnChunkReader::peek() {
  if (peeked_) return true;
  while (page_entries_left_ == 0) {
    if (entries_left_ == 0) return false;
    next_page();
  }
  --page_entries_left_;
  Entry entry;
  entry.repetition = next_level(repetition_, leaf_.most_repetition);
  entry.definition = next_level(definition_, leaf_.most_definition);
  peeked_ = entry;
  return true;
}

ColumnChunkReader::Entry ColumnChunkReader::take() {
  const Entry entry = *peeked_;
  peeked_.reset();
  return entry;
}

std::uint8_t ColumnChunkReader::next_level(std::optional<BitRuns>& levels, std::uint8_t most) {
  if (!levels) return 0;
  const std::uint32_t level = levels->next();
  if (level > most) bad_bytes("level {} of {}", level, most);
  return static_cast<std::uint8_t>(level);
}

std::uint64_t ColumnChunkReader::append(const Entry& entry, LeafEntries& to) {
  to.definition.push_back(entry.definition);
  if (leaf_.most_repetition > 0) to.repetition.push_back(entry.repetition);
  if (entry.definition < leaf_.most_definition) return kEntryBytes;
  if (leaf_.kind == ParquetField::Kind::kNull) bad_bytes("a value in a column of nulls");
  if (!values_) values_ = page_values(encoding_, value_bytes_, leaf_, dictionary_ ? &*dictionary_ : nullptr);
  return kEntryBytes + values_->append(to);
}

void ColumnChunkReader::next_page() {
  page_at_ = at_;
  if (at_ >= end_) bad_bytes("the column ends {} values too early", entries_left_);
  load_page();
}

void ColumnChunkReader::load_page() {
  const PageHead head = read_head();
  at_ += head.head_bytes;
  check_head(head, end_ - at_);
  const std::string_view body = read_body(head);
  at_ += body.size();
  switch (head.type) {
    case PageType::kIndex:
      return;
    case PageType::kDictionary:
      return load_dictionary(head, body);
    case PageType::kData:
      return load_data(head, body);
    case PageType::kDataV2:
      return load_data_v2(head, body);
  }
}

// Its size is known only when it was read.
PageHead ColumnChunkReader::read_head() {
  for (std::size_t wanted = kHeadBytes;; wanted *= 8) {
    const std::uint64_t size = std::min<std::uint64_t>(wanted, end_ - at_);
    head_bytes_.resize(size);
    reader_.read(at_, std::as_writable_bytes(std::span(head_bytes_)));
    try {
      return parse_page_head(head_bytes_);
    } catch (const MissingBytes&) {
      if (size == end_ - at_ || wanted > kMostHeadBytes) throw;
    }
  }
}

std::string_view ColumnChunkReader::read_body(const PageHead& head) {
  const auto size = static_cast<std::size_t>(head.compressed_bytes);
  char* const to = body_.resize(size);
  reader_.read(at_, std::as_writable_bytes(std::span(to, size)));
  if (head.crc && crc32(bytes_of(body_.bytes())) != *head.crc) {
    bad_bytes("the page's bytes have the CRC-32 {:08x}, but its head has {:08x}", crc32(bytes_of(body_.bytes())),
              *head.crc);
  }
  return body_.bytes();
}

std::string_view ColumnChunkReader::decompress(std::string_view bytes, std::size_t size) {
  return decompressed(chunk_.codec, bytes, size, decompressed_);
}

void ColumnChunkReader::load_dictionary(const PageHead& head, std::string_view body) {
  if (dictionary_) bad_bytes("a second dictionary");
  if (head.encoding != Encoding::kPlain && head.encoding != Encoding::kPlainDictionary) {
    bad_bytes("a dictionary with the encoding {}", name_of_encoding(head.encoding));
  }
  const auto page = decompress(body, static_cast<std::size_t>(head.uncompressed_bytes));
  dictionary_ = read_dictionary(page, static_cast<std::uint64_t>(head.values), leaf_);
}

void ColumnChunkReader::load_data(const PageHead& head, std::string_view body) {
  ByteCursor page(decompress(body, static_cast<std::size_t>(head.uncompressed_bytes)));
  repetition_.reset();
  definition_.reset();
  if (leaf_.most_repetition > 0) {
    repetition_.emplace(sized_levels(page, head.repetition_encoding), level_bits(leaf_.most_repetition));
  }
  if (leaf_.most_definition > 0) {
    definition_.emplace(sized_levels(page, head.definition_encoding), level_bits(leaf_.most_definition));
  }
  begin_values(head, page.rest());
}

// Levels are not compressed.
void ColumnChunkReader::load_data_v2(const PageHead& head, std::string_view body) {
  if (head.repetition_bytes < 0 || head.definition_bytes < 0) bad_bytes("levels of a negative number of bytes");
  ByteCursor page(body);
  const std::string_view repetition = page.take(static_cast<std::uint64_t>(head.repetition_bytes));
  const std::string_view definition = page.take(static_cast<std::uint64_t>(head.definition_bytes));
  const auto levels = static_cast<std::int64_t>(repetition.size() + definition.size());
  const std::int64_t values = head.uncompressed_bytes - levels;
  if (values < 0) bad_bytes("{} bytes, {} of them levels", head.uncompressed_bytes, levels);
  repetition_.reset();
  definition_.reset();
  if (leaf_.most_repetition > 0) repetition_.emplace(repetition, level_bits(leaf_.most_repetition));
  if (leaf_.most_definition > 0) definition_.emplace(definition, level_bits(leaf_.most_definition));
  const bool as_it_is = !head.is_compressed || page.rest().empty();
  if (as_it_is && static_cast<std::int64_t>(page.rest().size()) != values) {
    bad_bytes("{} bytes without compression, {} claimed", page.rest().size(), values);
  }
  begin_values(head, as_it_is ? page.rest() : decompress(page.rest(), static_cast<std::size_t>(values)));
}

void ColumnChunkReader::begin_values(const PageHead& head, std::string_view values) {
  if (!is_known_encoding(head.encoding)) {
    config_error("{}: the encoding {} is not read; write the file with PLAIN or a dictionary", place(),
                 name_of_encoding(head.encoding));
  }
  const auto entries = static_cast<std::uint64_t>(head.values);
  if (entries > entries_left_) bad_bytes("a page of {} values where the column has {} left", entries, entries_left_);
  entries_left_ -= entries;
  page_entries_left_ = entries;
  encoding_ = head.encoding;
  value_bytes_ = values;
  values_.reset();
}

}  // namespace loom::io
