// MappedFile: a regular file's bytes, mapped read-only for as long as the object lives.
//
// Pages are read when touched, so a rank that looks at a few rows of a large file pays for those rows only.
// Moving keeps the addresses. Touching bytes() of a file that others have shortened ends the process (SIGBUS), and
// bytes that others have written appear silently: use a FileReader for bytes that are read long after opening.
//
// Threads  reading is safe from any number of threads.
// Errors   ConfigError with the path and the system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace loom::io {

// Which file it was when it was opened, and in which state.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::int64_t size_bytes = 0;
  std::int64_t modified_ns = 0;  // since 1970

  bool operator==(const FileIdentity&) const = default;
};

class MappedFile {
 public:
  // Maps the whole file; an empty file has no bytes. Throws ConfigError unless `path` is a readable regular file.
  explicit MappedFile(std::filesystem::path path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  const FileIdentity& identity() const { return identity_; }

 private:
  std::filesystem::path path_;
  FileIdentity identity_;
  std::span<const std::byte> bytes_;
};

// Reads a file that was mapped earlier, from the file itself, and only while it has not changed since.
//
// Holds    a descriptor: made for a few reads, not kept, so that the number of files is not bounded by descriptors.
// Threads  one thread at a time.
// Errors   Error with the path when the file is gone, was replaced, changed (size or time of modification) or cannot be
//          read: the bytes read so far belong to other content than the bytes that would follow.
class FileReader {
 public:
  explicit FileReader(const MappedFile& file);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  // The bytes [offset, offset + to.size()). Precondition: they are in the file as it was.
  void read(std::size_t offset, std::span<std::byte> to) const;

 private:
  void check() const;

  const MappedFile& file_;
  int fd_ = -1;
};

}  // namespace loom::io
