// TorchZip: the zip archives that torch.save writes, one after another in a file of a checkpoint: entries stored as
// they are, never compressed, every content at a multiple of 64 bytes.
//
// Read     from the central directory, which ends with the part: an archive has no comment. Every entry's local header
//          has to agree with it, both records of the directory's end have to agree, entries lie one behind another from
//          the first byte to the directory without a hole, and no name occurs twice. A compressed or encrypted entry is
//          refused.
// Written  as PyTorchStreamWriter does: local header with an extra field "FB" that fills up to the 64 bytes, content,
//          data descriptor with checksum and size; then the central directory. Above 4 GiB with the fields of zip64.
// Units    bytes.
// Threads  one thread at a time.
// Errors   FileDamage with file and offset.
// Source   PKWARE, APPNOTE.TXT 6.3; PyTorch, caffe2/serialize/inline_container.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/formats/safetensors/safetensors.h"
#include "engine/io/byte_source.h"

namespace loom::io {

struct TorchZipEntry {
  std::string name;         // without the archive's own folder: "data.pkl", "data/0"
  std::uint64_t begin = 0;  // of the content, in the source
  std::uint64_t size = 0;
  std::uint32_t crc32 = 0;
};

class TorchZip {
 public:
  // Reads the directory of the archive that `source` is; it outlives this object.
  explicit TorchZip(const ByteSource& source);

  const ByteSource& source() const { return source_; }
  // False where every checksum is 0: torch.serialization.set_crc32_options(False) leaves them out. Nothing can be
  // verified then.
  bool has_checksums() const { return has_checksums_; }
  // Null where there is none.
  const TorchZipEntry* find(std::string_view name) const;
  // Throws FileDamage where there is none.
  const TorchZipEntry& at(std::string_view name) const;
  // Throws FileDamage unless `found` is the checksum that was written, where there are checksums.
  void check_crc(const TorchZipEntry& entry, std::uint32_t found) const;
  // The content of a small entry, its checksum compared. FileDamage above `most` bytes.
  std::vector<std::byte> content(const TorchZipEntry& entry, std::uint64_t most) const;

 private:
  void add(TorchZipEntry entry);

  const ByteSource& source_;
  std::map<std::string, TorchZipEntry, std::less<>> entries_;
  bool has_checksums_ = false;
};

class TorchZipWriter {
 public:
  explicit TorchZipWriter(ByteSink sink) : sink_(std::move(sink)) {}

  void entry(std::string_view name, std::string_view content);
  // The same in pieces: begin, as many appends as there are pieces, end. `size` is the size of all pieces together.
  void begin(std::string_view name, std::uint64_t size);
  void append(std::span<const std::byte> piece);
  // Counts the rest of the content without it: for the size of an archive that is not written.
  void skip();
  void end();
  // The directory. Call once, last.
  void finish();
  std::uint64_t written() const { return written_; }

 private:
  struct Entry {
    std::string name;
    std::uint64_t header = 0;
    std::uint64_t size = 0;
    std::uint32_t crc32 = 0;
  };
  void put(std::string_view bytes);

  const ByteSink sink_;
  std::vector<Entry> entries_;
  std::uint64_t written_ = 0;
  std::uint64_t appended_ = 0;
};

}  // namespace loom::io
