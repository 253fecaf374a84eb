#include "engine/text/preprocess/record_files_reader.h"

#include <system_error>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::data {

RecordFilesReader::RecordFilesReader(std::vector<std::filesystem::path> files) : files_(std::move(files)) {
  for (const auto& file : files_) {
    std::error_code error;
    const std::uintmax_t bytes = std::filesystem::file_size(file, error);
    if (error) config_error("{}: cannot read: {}", escaped(file.string()), error.message());
    all_bytes_ += bytes;
  }
}

std::unique_ptr<RecordBatch> RecordFilesReader::next() {
  while (true) {
    if (current_) {
      if (auto batch = current_->next()) return batch;
      bytes_before_ += current_->all_bytes();
      current_ = nullptr;
    }
    if (opened_ == files_.size()) return nullptr;
    current_ = open_records(files_[opened_++]);
  }
}

std::uint64_t RecordFilesReader::done_bytes() const { return bytes_before_ + (current_ ? current_->done_bytes() : 0); }

}  // namespace loom::data
