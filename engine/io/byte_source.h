// ByteSource: bytes that are read by place - a part of a file, or memory - so that the reader of a format does not
// depend on where they are stored.
//
// Units    bytes; places count from the beginning of the source.
// Threads  one thread at a time.
// Errors   FileDamage where the place is not in the source, Error where the file cannot be read or has changed since it
//          was opened (FileReader).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/io/mapped_file.h"

namespace loom::io {

// A file contradicts its format or its checksum: it was cut short or changed, or never had that format. The text
// begins with file and offset. Another copy may be intact.
class FileDamage : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

class ByteSource {
 public:
  virtual ~ByteSource() = default;

  virtual std::uint64_t size() const = 0;
  // Fills `to` from the bytes that begin at `at`.
  void read(std::uint64_t at, std::span<std::byte> to) const;
  // `count` bytes as a value. FileDamage, before anything is allocated, where the source has fewer.
  std::vector<std::byte> bytes(std::uint64_t at, std::uint64_t count) const;

  // "DIR/__0_0.distcp: offset 1641": where `at` is in the file a reader can open.
  virtual std::string where(std::uint64_t at) const = 0;
  // Throws FileDamage unless the `count` bytes at `at` are in the source.
  void check(std::uint64_t at, std::uint64_t count) const;

 protected:
  virtual void read_inside(std::uint64_t at, std::span<std::byte> to) const = 0;
};

// A part of a file. The file outlives it.
class FileSlice final : public ByteSource {
 public:
  // FileDamage unless the file has the bytes [begin, begin + size).
  FileSlice(const FileReader& reader, const MappedFile& file, std::uint64_t begin, std::uint64_t size);

  std::uint64_t size() const override { return size_; }
  std::string where(std::uint64_t at) const override;

 protected:
  void read_inside(std::uint64_t at, std::span<std::byte> to) const override;

 private:
  const FileReader& reader_;
  const MappedFile& file_;
  const std::uint64_t begin_;
  const std::uint64_t size_;
};

// Bytes in memory, which outlive it; `name` appears in messages.
class MemorySource final : public ByteSource {
 public:
  MemorySource(std::span<const std::byte> bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {}

  std::uint64_t size() const override { return bytes_.size(); }
  std::string where(std::uint64_t at) const override;

 protected:
  void read_inside(std::uint64_t at, std::span<std::byte> to) const override;

 private:
  const std::span<const std::byte> bytes_;
  const std::string name_;
};

}  // namespace loom::io
