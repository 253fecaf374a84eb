// OutputLock: one run at a time writes an output.
//
// Held     by flock on a small file beside the output, which names the holder: process, host, start time. It ends with
//          the object, or with the process however that ends; the file is removed by the object.
// Shared   on file systems without locks there is no lock, and a warning is printed.
// Threads  one thread at a time.
// Errors   ConfigError: another run holds it (its process, host and start time in the text), or the file cannot be
//          made.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

namespace loom::io {

class OutputLock {
 public:
  // Locks a folder, or one file: "out/.shardloom.lock", "out/.metrics.jsonl.lock".
  static OutputLock of_folder(const std::string& flag, const std::filesystem::path& folder);
  static OutputLock of_file(const std::string& flag, const std::filesystem::path& file);
  // Locks a file, waiting while another thread or process holds it: for a file that all need and one makes.
  static OutputLock of_file_in_turn(const std::string& flag, const std::filesystem::path& file,
                                    std::chrono::milliseconds longest_wait);
  ~OutputLock();
  OutputLock(OutputLock&& other) noexcept;
  OutputLock& operator=(OutputLock&&) = delete;
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;

 private:
  OutputLock(const std::string& flag, const std::filesystem::path& output, std::filesystem::path lock,
             std::chrono::milliseconds longest_wait = {});
  // False where the file was removed by its former holder meanwhile.
  bool take(const std::string& flag, const std::filesystem::path& output, std::chrono::steady_clock::time_point until);
  void say_who() const;

  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace loom::io
