// AtomicFile: a file that appears whole or not at all.
//
// Bytes go to a temporary file in the same folder; commit() flushes it to disk and renames it over `path`.
// Without commit() (an exception passed by) the temporary file is removed and what `path` held before stays.
//
// Threads  one thread at a time; different threads and processes may write different files of one folder.
// Errors   ConfigError when the file cannot be created; Error when writing fails later (disk full). Both name the path.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace loom::io {

class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Appends.
  void write(std::span<const std::byte> bytes);
  // Makes the file visible under `path`. Call once, last.
  void commit();

 private:
  const std::filesystem::path path_;
  const std::filesystem::path temporary_;
  int fd_ = -1;
};

// A text as a file, whole or not at all.
void write_text(const std::filesystem::path& path, std::string_view text);

}  // namespace loom::io
