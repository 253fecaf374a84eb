// AtomicFile: a file that appears whole or not at all.
//
// File       bytes go to a temporary file in the same folder, with an unpredictable name; commit() flushes it to
//            disk and renames it over what `path` names (output_target.h: links are followed). The new file has the
//            permissions of the file it replaces; other hard links to the old file keep its content.
// Stream     a device, a FIFO or an open file of the process is written straight, as the bytes come.
// No commit  because of an exception: the temporary file is removed, and the former content of `path` stays.
//
// Threads  one thread at a time; different threads and processes may write different files of one folder.
// Errors   ConfigError when the file cannot be created, is not a writable file, or may not be replaced; Error
//          when writing fails later (disk full). Both name the path.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "engine/io/output_target.h"

namespace loom::io {

class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Appends.
  void write(std::span<const std::byte> bytes);
  // Flushes the written bytes to the disk, where they are not visible yet. Does nothing for a stream.
  void sync();
  // Makes the file visible under `path`. Call once, last.
  void commit();

 private:
  void make_temporary();
  void take_permissions();
  void put_in_place();

  const std::filesystem::path path_;  // as given: for messages
  const OutputTarget target_;
  std::string temporary_ = {};  // its name in the folder
  int folder_ = -1;
  int fd_ = -1;
};

// A text as a file, whole or not at all.
void write_text(const std::filesystem::path& path, std::string_view text);

}  // namespace loom::io
