// ScratchFile: bytes that are put aside on disk and read back by place. It has no name, so that no file remains
// however the process ends.
//
// Place    in `folder`, so that its bytes are on the same disk as the output made from them.
// Memory   a buffer of 1 MiB for appending.
// Threads  one thread at a time.
// Errors   ConfigError with the folder: no file can be made there. Error: the disk is full, or reading fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace loom::io {

class ScratchFile {
 public:
  explicit ScratchFile(std::filesystem::path folder);
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  // Writes at the end.
  void append(std::span<const std::byte> bytes);
  // The bytes [at, at + to.size()), which were appended before.
  void read(std::uint64_t at, std::span<std::byte> to);
  std::uint64_t size() const { return on_disk_ + buffer_.size(); }

 private:
  void write(std::span<const std::byte> bytes);
  void flush();

  const std::filesystem::path folder_;
  int fd_ = -1;
  std::uint64_t on_disk_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace loom::io
