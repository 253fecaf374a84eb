#include "engine/formats/indexed/indexed_dataset.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <sys/stat.h>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/is_there.h"
#include "engine/core/shown_text.h"
#include "engine/formats/indexed/indexed_layout.h"

namespace loom::io {
namespace {

namespace fs = std::filesystem;
using namespace indexed_layout;

static_assert(std::endian::native == std::endian::little, "tokens are stored little endian and mapped as they are");

struct DtypeRow {
  IndexedDtype dtype;
  std::string_view name;
  std::int64_t bytes;
};

constexpr std::array<DtypeRow, 8> kDtypes{{{IndexedDtype::kU8, "uint8", 1},
                                           {IndexedDtype::kI8, "int8", 1},
                                           {IndexedDtype::kI16, "int16", 2},
                                           {IndexedDtype::kI32, "int32", 4},
                                           {IndexedDtype::kI64, "int64", 8},
                                           {IndexedDtype::kF64, "float64", 8},
                                           {IndexedDtype::kF32, "float32", 4},
                                           {IndexedDtype::kU16, "uint16", 2}}};

constexpr const char* kMakeAgain = "write the pair again, or give the prefix of a whole one";

const DtypeRow& row_of(IndexedDtype dtype) { return kDtypes.at(static_cast<std::size_t>(dtype) - 1); }

template <class T>
T value_at(std::span<const std::byte> bytes, std::int64_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

std::int64_t size_of(const MappedFile& file) { return static_cast<std::int64_t>(file.bytes().size()); }

std::string shown(const fs::path& path) { return escaped(path.string()); }

// Possible meanings of a prefix without a pair: the name of one of the files, or the output prefix of
// preprocess_data, which appends the key and the level.
std::string advice_for(const fs::path& prefix) {
  if (const std::string ending = prefix.extension().string(); ending == ".bin" || ending == ".idx") {
    const fs::path without = fs::path(prefix).replace_extension();
    if (is_there(idx_path(without))) return fmt::format("give the prefix without {}: {}", ending, shown(without));
  }
  if (const fs::path longer = prefix.string() + "_text_document"; is_there(idx_path(longer))) {
    return fmt::format("give {}", shown(longer));
  }
  return "give the path of a .bin/.idx pair without its ending";
}

// The .idx is written last, so a .bin alone was never finished.
fs::path checked_prefix(fs::path prefix) {
  for (const auto& [path, other] :
       {std::pair(idx_path(prefix), bin_path(prefix)), std::pair(bin_path(prefix), idx_path(prefix))}) {
    if (is_there(path)) continue;
    if (is_there(other)) {
      config_error("{}: there is no such file beside {}; {}", shown(path), shown(other.filename()), kMakeAgain);
    }
    config_error("{}: there is no such file; {}", shown(path), advice_for(prefix));
  }
  return prefix;
}

template <class T>
void widen(const std::byte* from, std::span<std::int32_t> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    to[i] = static_cast<std::int32_t>(value);
  }
}

// The first element that int32 does not hold, or to.size().
std::size_t narrow(const std::byte* from, std::span<std::int32_t> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    std::int64_t value;
    std::memcpy(&value, from + i * sizeof(value), sizeof(value));
    if (!std::in_range<std::int32_t>(value)) return i;
    to[i] = static_cast<std::int32_t>(value);
  }
  return to.size();
}

bool is_as_it_was(const MappedFile& file) {
  struct stat now {};
  if (::stat(file.path().c_str(), &now) != 0) return false;
  constexpr std::int64_t kSecond_ns = 1'000'000'000;
  const FileIdentity identity{.device = now.st_dev,
                              .inode = now.st_ino,
                              .size_bytes = now.st_size,
                              .modified_ns = now.st_mtim.tv_sec * kSecond_ns + now.st_mtim.tv_nsec};
  return identity == file.identity();
}

}  // namespace

std::string_view name_of(IndexedDtype dtype) { return row_of(dtype).name; }

std::int64_t element_bytes(IndexedDtype dtype) { return row_of(dtype).bytes; }

IndexedDtype dtype_of_vocabulary(std::int64_t ids) {
  constexpr std::int64_t kFirstWide = 65500;
  return ids < kFirstWide ? IndexedDtype::kU16 : IndexedDtype::kI32;
}

fs::path bin_path(const fs::path& prefix) { return prefix.string() + ".bin"; }
fs::path idx_path(const fs::path& prefix) { return prefix.string() + ".idx"; }

IndexedDataset::IndexedDataset(fs::path prefix)
    : prefix_(checked_prefix(std::move(prefix))), idx_(idx_path(prefix_)), bin_(bin_path(prefix_)) {
  check_header();
  check_sizes();
  check_sequences();
  check_documents();
  tokens_ = bin_.bytes().first(static_cast<std::size_t>(token_count_ * element_bytes(dtype_)));
}

void IndexedDataset::check_header() {
  const auto bytes = idx_.bytes();
  const std::string file = shown(idx_.path());
  if (size_of(idx_) < kLengthsAt) {
    config_error("{}: it has {} bytes, and its header alone has {}; {}", file, size_of(idx_), kLengthsAt, kMakeAgain);
  }
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    config_error("{}: it does not begin with MMIDIDX and two zeros; {}", file, kMakeAgain);
  }
  if (const auto version = value_at<std::uint64_t>(bytes, kVersionAt); version != kVersion) {
    config_error("{}: the version at byte {} is {}, and only {} is known; {}", file, kVersionAt, version, kVersion,
                 kMakeAgain);
  }
  const auto code = value_at<std::uint8_t>(bytes, kDtypeAt);
  if (code < 1 || code > kDtypes.size()) {
    config_error("{}: the dtype code at byte {} is {}, and the codes are 1 to {}; {}", file, kDtypeAt, code,
                 kDtypes.size(), kMakeAgain);
  }
  dtype_ = static_cast<IndexedDtype>(code);
}

// Counts are held against the bytes that are there before anything is multiplied by them.
void IndexedDataset::check_sizes() {
  const std::string file = shown(idx_.path());
  const std::int64_t room = size_of(idx_) - kLengthsAt;
  const auto sequences = value_at<std::uint64_t>(idx_.bytes(), kSequencesAt);
  const auto most = static_cast<std::uint64_t>(room / (kLengthBytes + kOffsetBytes));
  if (sequences > most) {
    config_error("{}: the number of sequences at byte {} is {}, and the {} bytes of the file hold at most {}; {}", file,
                 kSequencesAt, sequences, size_of(idx_), most, kMakeAgain);
  }
  sequence_count_ = static_cast<std::int64_t>(sequences);
  const std::int64_t rest = room - sequence_count_ * (kLengthBytes + kOffsetBytes);
  const auto entries = value_at<std::uint64_t>(idx_.bytes(), kEntriesAt);
  if (entries < 1 || entries > static_cast<std::uint64_t>(rest / kEntryBytes)) {
    config_error(
        "{}: the number of entries of the document index at byte {} is {}; it is 1 or more, and the {} bytes of the "
        "file hold at most {}; {}",
        file, kEntriesAt, entries, size_of(idx_), rest / kEntryBytes, kMakeAgain);
  }
  entry_count_ = static_cast<std::int64_t>(entries);
  const std::int64_t behind = rest - entry_count_ * kEntryBytes;
  if (behind != 0 && behind != sequence_count_) {
    config_error(
        "{}: it has {} bytes; {} sequences and {} entries of the document index take {}, and {} with modes; {}", file,
        size_of(idx_), sequence_count_, entry_count_, size_of(idx_) - behind, size_of(idx_) - behind + sequence_count_,
        kMakeAgain);
  }
  has_modes_ = behind != 0;
}

void IndexedDataset::check_sequences() {
  const std::int64_t offsets_at = kLengthsAt + sequence_count_ * kLengthBytes;
  const std::int64_t size_bytes = size_of(bin_);
  std::int64_t end = 0;
  for (std::int64_t i = 0; i < sequence_count_; ++i) {
    const std::int32_t tokens = length(i);
    const std::int64_t length_at = kLengthsAt + i * kLengthBytes;
    if (tokens < 0) {
      config_error("{}: the length of sequence {} at byte {} is {}; it is 0 or more; {}", shown(idx_.path()), i,
                   length_at, tokens, kMakeAgain);
    }
    const std::int64_t offset_at = offsets_at + i * kOffsetBytes;
    if (const auto offset = value_at<std::int64_t>(idx_.bytes(), offset_at); offset != end) {
      config_error("{}: the offset of sequence {} at byte {} is {}, and the lengths before it make {}; {}",
                   shown(idx_.path()), i, offset_at, offset, end, kMakeAgain);
    }
    end += tokens * element_bytes(dtype_);
    if (end > size_bytes) {
      config_error("{}: sequence {} (length {} at byte {}) ends at byte {} of {}, which has {}; {}", shown(idx_.path()),
                   i, tokens, length_at, end, shown(bin_.path().filename()), size_bytes, kMakeAgain);
    }
  }
  token_count_ = end / element_bytes(dtype_);
  if (end != size_bytes) {
    config_error("{}: it has {} bytes, and the sequences of {} end at byte {}; the two are not of one pair; {}",
                 shown(bin_.path()), size_bytes, shown(idx_.path().filename()), end, kMakeAgain);
  }
}

void IndexedDataset::check_documents() const {
  const std::int64_t at = kLengthsAt + sequence_count_ * (kLengthBytes + kOffsetBytes);
  std::int64_t before = 0;
  for (std::int64_t i = 0; i < entry_count_; ++i) {
    const std::int64_t entry = document_begin(i);
    const bool first = i == 0 && entry != 0;
    if (first || entry < before || entry > sequence_count_) {
      config_error("{}: entry {} of the document index at byte {} is {}; it is {}; {}", shown(idx_.path()), i,
                   at + i * kEntryBytes, entry,
                   first ? std::string("0") : fmt::format("{} to {}", before, sequence_count_), kMakeAgain);
    }
    before = entry;
  }
  if (before != sequence_count_) {
    config_error("{}: the last entry of the document index at byte {} is {}, and there are {} sequences; {}",
                 shown(idx_.path()), at + (entry_count_ - 1) * kEntryBytes, before, sequence_count_, kMakeAgain);
  }
}

std::int32_t IndexedDataset::length(std::int64_t sequence) const {
  require(0 <= sequence && sequence < sequence_count_, "sequence {} of {}", sequence, sequence_count_);
  return value_at<std::int32_t>(idx_.bytes(), kLengthsAt + sequence * kLengthBytes);
}

std::int8_t IndexedDataset::mode(std::int64_t sequence) const {
  require(has_modes_ && 0 <= sequence && sequence < sequence_count_, "mode {} of {}", sequence, sequence_count_);
  return value_at<std::int8_t>(idx_.bytes(), size_of(idx_) - sequence_count_ + sequence);
}

std::int64_t IndexedDataset::document_begin(std::int64_t document) const {
  require(0 <= document && document < entry_count_, "document {} of {}", document, entry_count_ - 1);
  return value_at<std::int64_t>(idx_.bytes(),
                                kLengthsAt + sequence_count_ * (kLengthBytes + kOffsetBytes) + document * kEntryBytes);
}

std::span<const std::byte> IndexedDataset::length_bytes() const {
  return idx_.bytes().subspan(kLengthsAt, static_cast<std::size_t>(sequence_count_ * kLengthBytes));
}

std::span<const std::byte> IndexedDataset::bytes(std::int64_t sequence) const {
  const std::int64_t tokens = length(sequence);
  const auto offset =
      value_at<std::int64_t>(idx_.bytes(), kLengthsAt + sequence_count_ * kLengthBytes + sequence * kOffsetBytes);
  return tokens_.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(tokens * element_bytes(dtype_)));
}

void IndexedDataset::read(std::int64_t sequence, std::int64_t offset, std::span<std::int32_t> to) const {
  const std::int64_t tokens = length(sequence);
  const auto count = static_cast<std::int64_t>(to.size());
  require(0 <= offset && offset <= tokens && count <= tokens - offset, "tokens [{}, {}) of sequence {}, which has {}",
          offset, offset + count, sequence, tokens);
  if (to.empty()) return;
  const std::byte* from = bytes(sequence).data() + offset * element_bytes(dtype_);
  switch (dtype_) {
    case IndexedDtype::kU8:
      return widen<std::uint8_t>(from, to);
    case IndexedDtype::kI8:
      return widen<std::int8_t>(from, to);
    case IndexedDtype::kI16:
      return widen<std::int16_t>(from, to);
    case IndexedDtype::kU16:
      return widen<std::uint16_t>(from, to);
    case IndexedDtype::kI32:
      std::memcpy(to.data(), from, to.size_bytes());
      return;
    case IndexedDtype::kI64:
      break;
    case IndexedDtype::kF64:
    case IndexedDtype::kF32:
      config_error("{}: it holds {}, which are not token ids; give a pair of integers", shown(bin_.path()),
                   name_of(dtype_));
  }
  if (const std::size_t bad = narrow(from, to); bad < to.size()) {
    config_error("{}: token {} of sequence {} is {}; token ids are {} to {}", shown(bin_.path()),
                 offset + static_cast<std::int64_t>(bad), sequence,
                 value_at<std::int64_t>(bytes(sequence), (offset + static_cast<std::int64_t>(bad)) * 8),
                 std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max());
  }
}

void IndexedDataset::check_unchanged() const {
  for (const MappedFile* file : {&idx_, &bin_}) {
    if (!is_as_it_was(*file)) const FileReader says_how_it_changed(*file);
  }
}

}  // namespace loom::io
