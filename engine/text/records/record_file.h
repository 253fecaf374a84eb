// The bytes of a file of records, read from its front in pieces. Private to engine/text.
//
// Begin    a byte order mark in front is skipped.
// Errors   ConfigError if the file cannot be read; Error if it changes while it is read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "engine/io/mapped_file.h"

namespace loom::data {

// The approximate size of a batch.
inline constexpr std::size_t kBatchBytes = std::size_t{256} << 10;
inline constexpr std::size_t kMostRecordBytes = std::size_t{256} << 20;

class RecordFile {
 public:
  explicit RecordFile(const std::filesystem::path& path) : file_(path), reader_(file_) {}

  // Appends the next piece; false at the end of the file.
  bool read_more(std::string& text);

  // Reads from the front again.
  void rewind() { done_ = 0; }

  std::uint64_t done_bytes() const { return done_; }
  std::uint64_t all_bytes() const { return file_.bytes().size(); }
  // The name in messages; batches keep it when the reader is gone.
  const std::shared_ptr<const std::string>& name() const { return name_; }

 private:
  io::MappedFile file_;
  io::FileReader reader_;
  std::uint64_t done_ = 0;
  std::shared_ptr<const std::string> name_ = std::make_shared<const std::string>(file_.path().string());
};

// "data/a.jsonl:12"
std::string line_place(const std::string& file, std::uint64_t line);

[[noreturn]] void refuse_long_record(const std::string& file, std::uint64_t line);

// ConfigError unless the text of a line is UTF-8.
void check_utf8(std::string_view text, const std::string& file, std::uint64_t line);

// White space in JSON.
bool is_blank(std::string_view text);

}  // namespace loom::data
