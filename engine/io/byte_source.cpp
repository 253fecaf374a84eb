#include "engine/io/byte_source.h"

#include <algorithm>

namespace loom::io {

void ByteSource::check(std::uint64_t at, std::uint64_t count) const {
  if (at <= size() && count <= size() - at) return;
  throw FileDamage(fmt::format("{}: expected {} bytes here, but the part ends after {}; the file is cut short",
                               where(std::min(at, size())), count, at <= size() ? size() - at : 0));
}

void ByteSource::read(std::uint64_t at, std::span<std::byte> to) const {
  check(at, to.size());
  read_inside(at, to);
}

std::vector<std::byte> ByteSource::bytes(std::uint64_t at, std::uint64_t count) const {
  check(at, count);
  std::vector<std::byte> found(count);
  read_inside(at, found);
  return found;
}

FileSlice::FileSlice(const FileReader& reader, const MappedFile& file, std::uint64_t begin, std::uint64_t size)
    : reader_(reader), file_(file), begin_(begin), size_(size) {
  const std::uint64_t whole = file.bytes().size();
  if (begin <= whole && size <= whole - begin) return;
  throw FileDamage(fmt::format("{}: expected {} bytes at offset {}, but the file has {}; it is cut short",
                               file.path().string(), size, begin, whole));
}

std::string FileSlice::where(std::uint64_t at) const {
  return fmt::format("{}: offset {}", file_.path().string(), begin_ + at);
}

void FileSlice::read_inside(std::uint64_t at, std::span<std::byte> to) const { reader_.read(begin_ + at, to); }

std::string MemorySource::where(std::uint64_t at) const { return fmt::format("{}: offset {}", name_, at); }

void MemorySource::read_inside(std::uint64_t at, std::span<std::byte> to) const {
  std::ranges::copy(bytes_.subspan(at, to.size()), to.begin());
}

}  // namespace loom::io
