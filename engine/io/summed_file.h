// SummedFile: a new file, written once from front to back, with the checksum of its bytes.
//
// Checksum  CRC-32C of the bytes as they were given, not as the disk has them: reading the file back compares the two.
// Threads   one thread at a time.
// Errors    Error with path and reason: the name is taken, the disk is full. An object that is destroyed before
//           finish() leaves what it has written; whoever owns the folder removes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace loom::io {

struct FileSum {
  std::uint64_t size_bytes = 0;
  std::uint32_t crc32c = 0;

  bool operator==(const FileSum&) const = default;
};

class SummedFile {
 public:
  // Makes the file. Neither a file nor a link of that name may exist.
  explicit SummedFile(std::filesystem::path path);
  ~SummedFile();
  SummedFile(const SummedFile&) = delete;
  SummedFile& operator=(const SummedFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void append(std::span<const std::byte> bytes);
  // Bytes appended so far.
  std::uint64_t size() const { return sum_.size_bytes; }
  // Flushes to disk and closes. Call once, last.
  FileSum finish();

 private:
  void write(std::span<const std::byte> bytes);
  void flush();

  const std::filesystem::path path_;
  FileSum sum_;
  std::vector<std::byte> buffer_;
  int fd_ = -1;
};

}  // namespace loom::io
