// MappedFile: a regular file's bytes, mapped read-only for as long as the object lives.
//
// Pages are read when touched, so a rank that looks at a few rows of a large file pays for those rows only.
// Moving keeps the addresses. A file that is shortened by others while it is mapped ends the process (SIGBUS).
//
// Threads  reading is safe from any number of threads.
// Errors   ConfigError with the path and the system's reason.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace loom::io {

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

 private:
  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

}  // namespace loom::io
