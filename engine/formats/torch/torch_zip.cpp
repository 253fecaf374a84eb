#include "engine/formats/torch/torch_zip.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include "engine/core/shown_text.h"
#include "engine/io/checksum.h"

namespace loom::io {
namespace {

constexpr std::uint32_t kLocalHeader = 0x04034b50;
constexpr std::uint32_t kDescriptor = 0x08074b50;
constexpr std::uint32_t kDirectoryEntry = 0x02014b50;
constexpr std::uint32_t kDirectoryEnd = 0x06054b50;
constexpr std::uint32_t kDirectoryEnd64 = 0x06064b50;
constexpr std::uint32_t kLocator64 = 0x07064b50;
constexpr std::uint64_t kLocalHeaderBytes = 30;
constexpr std::uint64_t kDirectoryEntryBytes = 46;
constexpr std::uint64_t kDirectoryEndBytes = 22;
constexpr std::uint64_t kLocator64Bytes = 20;
constexpr std::uint64_t kDirectoryEnd64Bytes = 56;
constexpr std::uint64_t kDescriptorBytes = 16;
constexpr std::uint64_t kDescriptor64Bytes = 24;
constexpr std::uint64_t kAlignment = 64;
constexpr std::size_t kBlock = std::size_t{1} << 20;  // summed and handed on while it is in the cache
constexpr std::uint32_t kIn64 = 0xffffffff;           // the figure is in the field of zip64
constexpr std::uint16_t kMany = 0xffff;               // entries: the same
constexpr std::uint16_t kZip64Field = 1;
constexpr std::uint16_t kPaddingField = 0x4246;       // "FB"
constexpr std::uint16_t kDescriptorAndUtf8 = 0x0808;  // flags
constexpr std::uint16_t kEncrypted = 0x0001;
constexpr std::uint16_t kHasDescriptor = 0x0008;
constexpr std::string_view kFolder = "archive/";

// Little-endian figures one after another.
class Fields {
 public:
  explicit Fields(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::uint16_t u16() { return static_cast<std::uint16_t>(take(2)); }
  std::uint32_t u32() { return static_cast<std::uint32_t>(take(4)); }
  std::uint64_t u64() { return take(8); }
  void skip(std::size_t count) { at_ += count; }
  std::size_t left() const { return at_ < bytes_.size() ? bytes_.size() - at_ : 0; }
  std::span<const std::byte> rest(std::size_t count) const { return bytes_.subspan(at_, count); }

 private:
  std::uint64_t take(std::size_t count) {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes_.data() + at_, count);
    at_ += count;
    return value;
  }
  const std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

[[noreturn]] void damaged(const ByteSource& source, std::uint64_t at, const std::string& what) {
  throw FileDamage(fmt::format("{}: {}", source.where(at), what));
}

struct Directory {
  std::uint64_t begin = 0;
  std::uint64_t size = 0;
  std::uint64_t entries = 0;
};

constexpr std::uint64_t kMostDirectory = 64 << 20;

// The end of the part: the record of zip64 and its locator, where they are, and the record of the directory's end.
class Tail {
 public:
  explicit Tail(const ByteSource& source) : source_(source) {
    const std::uint64_t size = std::min(source.size(), kDirectoryEnd64Bytes + kLocator64Bytes + kDirectoryEndBytes);
    bytes_ = source.bytes(source.size() - size, size);
  }

  Directory directory() const {
    if (signature(kDirectoryEndBytes) != kDirectoryEnd) {
      damaged(source_, 0,
              "no zip archive of torch.save: its directory is missing; the file is cut short or another one");
    }
    Fields fields = from(kDirectoryEndBytes);
    fields.skip(10);
    Directory found;
    found.entries = fields.u16();
    found.size = fields.u32();
    found.begin = fields.u32();
    std::uint64_t end = source_.size() - kDirectoryEndBytes;
    if (signature(kDirectoryEndBytes + kLocator64Bytes) == kLocator64) {
      end = in64(found);
    } else if (found.entries == kMany || found.size == kIn64 || found.begin == kIn64) {
      damaged(source_, end, "the zip64 locator is missing");
    }
    if (found.begin > end || found.size != end - found.begin) {
      damaged(
          source_, end,
          fmt::format("the zip directory should be {} bytes at {}, but it ends at {}", found.size, found.begin, end));
    }
    if (found.size > kMostDirectory) {
      damaged(source_, end,
              fmt::format("a zip directory of {} bytes; at most {} are read", found.size, kMostDirectory));
    }
    return found;
  }

 private:
  // The fields that begin `back` bytes before the end.
  Fields from(std::uint64_t back) const { return Fields(std::span(bytes_).subspan(bytes_.size() - back)); }
  std::uint32_t signature(std::uint64_t back) const { return back > bytes_.size() ? 0 : from(back).u32(); }

  // Reads the figures of zip64, with which the older record has to agree; returns the end of the directory.
  std::uint64_t in64(Directory& directory) const {
    constexpr std::uint64_t kBack = kDirectoryEndBytes + kLocator64Bytes + kDirectoryEnd64Bytes;
    const std::uint64_t locator = source_.size() - kDirectoryEndBytes - kLocator64Bytes;
    Fields fields = from(kDirectoryEndBytes + kLocator64Bytes);
    fields.skip(8);
    if (signature(kBack) != kDirectoryEnd64 || fields.u64() != source_.size() - kBack) {
      damaged(source_, locator, "the zip64 record of the directory is not in front of its locator");
    }
    Fields record = from(kBack);
    record.skip(32);
    Directory found;
    found.entries = record.u64();
    found.size = record.u64();
    found.begin = record.u64();
    const bool same = (directory.entries == found.entries || directory.entries == kMany) &&
                      (directory.size == found.size || directory.size == kIn64) &&
                      (directory.begin == found.begin || directory.begin == kIn64);
    if (!same) damaged(source_, source_.size() - kBack, "the two records of the zip directory's end differ");
    directory = found;
    return source_.size() - kBack;
  }

  const ByteSource& source_;
  std::vector<std::byte> bytes_;
};

// The sizes and the place of an entry that are in its field of zip64.
void read_zip64(const ByteSource& source, std::uint64_t at, std::span<const std::byte> extra, std::uint64_t& size,
                std::uint64_t& stored_size, std::uint64_t& header) {
  if (size != kIn64 && stored_size != kIn64 && header != kIn64) return;
  Fields fields(extra);
  while (fields.left() >= 4) {
    const std::uint16_t id = fields.u16();
    const std::uint16_t bytes = fields.u16();
    if (bytes > fields.left()) break;
    if (id != kZip64Field) {
      fields.skip(bytes);
      continue;
    }
    Fields found(fields.rest(bytes));
    for (std::uint64_t* figure : {&size, &stored_size, &header}) {
      if (*figure != kIn64) continue;
      if (found.left() < 8) damaged(source, at, "a zip entry's zip64 field is too short");
      *figure = found.u64();
    }
    return;
  }
  damaged(source, at, "a zip entry needs a zip64 field and has none");
}

struct Listed {
  std::string name;  // unchanged, with the archive's folder
  TorchZipEntry entry;
  std::uint64_t header = 0;
  bool has_descriptor = false;  // behind the content
};

// The begin of the content: behind the local header, which has to agree with the directory.
std::uint64_t content_of(const ByteSource& source, const Listed& listed) {
  const std::vector<std::byte> header = source.bytes(listed.header, kLocalHeaderBytes + listed.name.size());
  Fields fields(header);
  if (fields.u32() != kLocalHeader) {
    damaged(source, listed.header, fmt::format("no zip entry, but {} should be here", shown_text(listed.name)));
  }
  fields.skip(2);
  const std::uint16_t flags = fields.u16();
  const std::uint16_t method = fields.u16();
  fields.skip(4);
  const std::uint32_t crc = fields.u32();
  const std::uint32_t stored_size = fields.u32();
  const std::uint32_t size = fields.u32();
  const std::uint64_t name_bytes = fields.u16();
  const std::uint64_t extra_bytes = fields.u16();
  const auto name = fields.rest(listed.name.size());
  const auto says = [](std::uint64_t figure, std::uint64_t in_directory) {
    return figure == in_directory || figure == kIn64;
  };
  // With a descriptor behind the content the header may leave the figures out.
  const bool left_out = listed.has_descriptor && crc == 0;
  const bool same =
      method == 0 && (flags & kEncrypted) == 0 && ((flags & kHasDescriptor) != 0) == listed.has_descriptor &&
      name_bytes == listed.name.size() && std::memcmp(name.data(), listed.name.data(), name.size()) == 0 &&
      (left_out ||
       (crc == listed.entry.crc32 && says(size, listed.entry.size) && says(stored_size, listed.entry.size)));
  if (!same) {
    damaged(source, listed.header,
            fmt::format("the zip entry {} is another one in the directory", shown_text(listed.name)));
  }
  return listed.header + kLocalHeaderBytes + name_bytes + extra_bytes;
}

std::string without_folder(const std::string& name) {
  const std::size_t slash = name.find('/');
  return slash == std::string::npos ? name : name.substr(slash + 1);
}

// One record of the directory, which begins at `place`; `size` becomes the record's own.
Listed read_record(const ByteSource& source, std::uint64_t place, std::span<const std::byte> bytes,
                   std::uint64_t& size) {
  if (bytes.size() < kDirectoryEntryBytes) damaged(source, place, "the zip directory is cut short");
  Fields fields(bytes);
  if (fields.u32() != kDirectoryEntry) damaged(source, place, "no entry of a zip directory");
  fields.skip(4);
  const std::uint16_t flags = fields.u16();
  const std::uint16_t method = fields.u16();
  fields.skip(4);
  Listed listed;
  listed.entry.crc32 = fields.u32();
  std::uint64_t stored_size = fields.u32();
  listed.entry.size = fields.u32();
  const std::uint64_t name_bytes = fields.u16();
  const std::uint64_t extra_bytes = fields.u16();
  const std::uint64_t variable = name_bytes + extra_bytes + fields.u16();
  fields.skip(8);
  listed.header = fields.u32();
  if (fields.left() < variable) damaged(source, place, "the zip directory is cut short");
  const auto name = fields.rest(name_bytes);
  listed.name.assign(reinterpret_cast<const char*>(name.data()), name.size());
  fields.skip(name_bytes);
  read_zip64(source, place, fields.rest(extra_bytes), listed.entry.size, stored_size, listed.header);
  if (method != 0 || (flags & kEncrypted) != 0 || stored_size != listed.entry.size) {
    damaged(source, place,
            fmt::format("the zip entry {} is compressed or encrypted; torch.save stores entries as they are",
                        shown_text(listed.name)));
  }
  listed.has_descriptor = (flags & kHasDescriptor) != 0;
  size = kDirectoryEntryBytes + variable;
  return listed;
}

}  // namespace

namespace {

// Entries follow one another, each with the descriptor behind its content; a hole could hide another archive.
void check_places(const ByteSource& source, std::vector<Listed> listed, std::uint64_t directory) {
  std::ranges::sort(listed, {}, &Listed::header);
  for (std::size_t i = 0; i < listed.size(); ++i) {
    const Listed& entry = listed[i];
    const std::uint64_t next = i + 1 < listed.size() ? listed[i + 1].header : directory;
    const std::uint64_t begin = entry.entry.begin;
    if (i == 0 && entry.header != 0) damaged(source, 0, "bytes that belong to no zip entry");
    if (begin > next || entry.entry.size > next - begin) {
      damaged(source, begin,
              fmt::format("the zip entry {} should have {} bytes, which do not end before {}", shown_text(entry.name),
                          entry.entry.size, next));
    }
    const std::uint64_t behind = next - begin - entry.entry.size;
    const bool right = entry.has_descriptor ? behind == kDescriptorBytes || behind == kDescriptor64Bytes : behind == 0;
    if (!right) {
      damaged(source, begin + entry.entry.size,
              fmt::format("{} bytes behind the zip entry {} that belong to nothing", behind, shown_text(entry.name)));
    }
  }
}

}  // namespace

TorchZip::TorchZip(const ByteSource& source) : source_(source) {
  const Directory directory = Tail(source).directory();
  const std::vector<std::byte> bytes = source.bytes(directory.begin, directory.size);
  std::uint64_t at = 0;
  std::vector<Listed> listed;
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    std::uint64_t record_bytes = 0;
    listed.push_back(read_record(source, directory.begin + at, std::span(bytes).subspan(at), record_bytes));
    listed.back().entry.name = without_folder(listed.back().name);
    listed.back().entry.begin = content_of(source, listed.back());
    at += record_bytes;
  }
  if (at != directory.size) {
    damaged(source, directory.begin + at,
            fmt::format("the zip directory should end here, behind {} entries", directory.entries));
  }
  for (const Listed& entry : listed) add(entry.entry);
  check_places(source, std::move(listed), directory.begin);
}

void TorchZip::add(TorchZipEntry entry) {
  const std::uint64_t begin = entry.begin;
  has_checksums_ = has_checksums_ || entry.crc32 != 0;
  const auto [found, is_new] = entries_.emplace(entry.name, std::move(entry));
  if (!is_new) damaged(source_, begin, fmt::format("the zip entry {} occurs twice", shown_text(found->first)));
}

const TorchZipEntry* TorchZip::find(std::string_view name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

const TorchZipEntry& TorchZip::at(std::string_view name) const {
  if (const TorchZipEntry* entry = find(name)) return *entry;
  damaged(source_, 0, fmt::format("the archive has no entry '{}'; it is none of torch.save", name));
}

void TorchZip::check_crc(const TorchZipEntry& entry, std::uint32_t found) const {
  if (found == entry.crc32 || !has_checksums_) return;
  damaged(source_, entry.begin,
          fmt::format("the content of '{}' has the checksum {:08x}, but {:08x} was written; the file is damaged",
                      shown_text(entry.name), found, entry.crc32));
}

std::vector<std::byte> TorchZip::content(const TorchZipEntry& entry, std::uint64_t most) const {
  if (entry.size > most) {
    damaged(source_, entry.begin,
            fmt::format("'{}' has {} bytes; at most {} are read", shown_text(entry.name), entry.size, most));
  }
  std::vector<std::byte> bytes = source_.bytes(entry.begin, entry.size);
  check_crc(entry, crc32(bytes));
  return bytes;
}

namespace {

class Record {
 public:
  Record& u16(std::uint64_t value) { return little(value, 2); }
  Record& u32(std::uint64_t value) { return little(value, 4); }
  Record& u64(std::uint64_t value) { return little(value, 8); }
  Record& text(std::string_view text) {
    bytes_ += text;
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  Record& little(std::uint64_t value, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) bytes_.push_back(static_cast<char>(value >> (8 * i) & 0xff));
    return *this;
  }
  std::string bytes_;
};

std::uint64_t or_in64(std::uint64_t value) { return value >= kIn64 ? kIn64 : value; }

}  // namespace

void TorchZipWriter::put(std::string_view bytes) {
  sink_(std::as_bytes(std::span(bytes.data(), bytes.size())));
  written_ += bytes.size();
}

void TorchZipWriter::entry(std::string_view name, std::string_view content) {
  begin(name, content.size());
  append(std::as_bytes(std::span(content.data(), content.size())));
  end();
}

void TorchZipWriter::begin(std::string_view name, std::uint64_t size) {
  Entry& entry = entries_.emplace_back();
  entry.name = std::string(kFolder) + std::string(name);
  entry.header = written_;
  entry.size = size;
  appended_ = 0;
  Record extra;
  if (size >= kIn64) extra.u16(kZip64Field).u16(16).u64(size).u64(size);
  const std::uint64_t fixed = written_ + kLocalHeaderBytes + entry.name.size() + extra.bytes().size() + 4;
  const std::uint64_t padding = (kAlignment - fixed % kAlignment) % kAlignment;
  extra.u16(kPaddingField).u16(padding).text(std::string(padding, 'Z'));
  Record header;
  header.u32(kLocalHeader).u16(0).u16(kDescriptorAndUtf8).u16(0).u32(0).u32(0);
  header.u32(size >= kIn64 ? kIn64 : 0).u32(size >= kIn64 ? kIn64 : 0);
  header.u16(entry.name.size()).u16(extra.bytes().size()).text(entry.name).text(extra.bytes());
  put(header.bytes());
}

void TorchZipWriter::append(std::span<const std::byte> piece) {
  Entry& entry = entries_.back();
  require(piece.size() <= entry.size - appended_, "zip entry '{}' gets more than its {} bytes", entry.name, entry.size);
  written_ += piece.size();
  appended_ += piece.size();
  while (!piece.empty()) {
    const auto block = piece.first(std::min(piece.size(), kBlock));
    entry.crc32 = crc32(block, entry.crc32);
    sink_(block);
    piece = piece.subspan(block.size());
  }
}

void TorchZipWriter::skip() {
  const std::uint64_t rest = entries_.back().size - appended_;
  written_ += rest;
  appended_ += rest;
}

void TorchZipWriter::end() {
  const Entry& entry = entries_.back();
  require(appended_ == entry.size, "zip entry '{}' got {} of its {} bytes", entry.name, appended_, entry.size);
  Record descriptor;
  descriptor.u32(kDescriptor).u32(entry.crc32);
  if (entry.size >= kIn64) {
    descriptor.u64(entry.size).u64(entry.size);
  } else {
    descriptor.u32(entry.size).u32(entry.size);
  }
  put(descriptor.bytes());
}

void TorchZipWriter::finish() {
  const std::uint64_t begin = written_;
  for (const Entry& entry : entries_) {
    Record extra;
    if (entry.size >= kIn64 || entry.header >= kIn64) {
      Record figures;
      if (entry.size >= kIn64) figures.u64(entry.size).u64(entry.size);
      if (entry.header >= kIn64) figures.u64(entry.header);
      extra.u16(kZip64Field).u16(figures.bytes().size()).text(figures.bytes());
    }
    Record record;
    record.u32(kDirectoryEntry).u16(0).u16(0).u16(kDescriptorAndUtf8).u16(0).u32(0).u32(entry.crc32);
    record.u32(or_in64(entry.size)).u32(or_in64(entry.size)).u16(entry.name.size()).u16(extra.bytes().size());
    record.u16(0).u16(0).u16(0).u32(0).u32(or_in64(entry.header)).text(entry.name).text(extra.bytes());
    put(record.bytes());
  }
  const std::uint64_t size = written_ - begin;
  Record end;
  if (begin >= kIn64 || size >= kIn64) {
    const std::uint64_t record = written_;
    end.u32(kDirectoryEnd64).u64(kDirectoryEnd64Bytes - 12).u16(45).u16(45).u32(0).u32(0);
    end.u64(entries_.size()).u64(entries_.size()).u64(size).u64(begin);
    end.u32(kLocator64).u32(0).u64(record).u32(1);
  }
  end.u32(kDirectoryEnd).u16(0).u16(0).u16(entries_.size()).u16(entries_.size());
  end.u32(or_in64(size)).u32(or_in64(begin)).u16(0);
  put(end.bytes());
}

}  // namespace loom::io
