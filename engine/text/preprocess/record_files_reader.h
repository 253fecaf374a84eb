// RecordFilesReader: the batches of several files of records, one file behind the other. Private to engine/text.
//
// Threads  one thread at a time. done_bytes() and all_bytes() count over all files.
// Errors   the errors of open_records(); ConfigError if a file is gone.
#pragma once

#include <vector>

#include "engine/text/records/record.h"

namespace loom::data {

class RecordFilesReader final : public RecordReader {
 public:
  explicit RecordFilesReader(std::vector<std::filesystem::path> files);

  std::unique_ptr<RecordBatch> next() override;
  std::uint64_t done_bytes() const override;
  std::uint64_t all_bytes() const override { return all_bytes_; }

 private:
  const std::vector<std::filesystem::path> files_;
  std::size_t opened_ = 0;
  std::unique_ptr<RecordReader> current_;
  std::uint64_t bytes_before_ = 0;  // of the files that are read completely
  std::uint64_t all_bytes_ = 0;
};

}  // namespace loom::data
