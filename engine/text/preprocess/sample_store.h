// SampleStore: samples stored temporarily on the output's disk, read back by number. Private to engine/text.
//
// Memory   16 bytes a sample, and a buffer of 1 MiB.
// Threads  one thread at a time.
// Errors   the errors of io::ScratchFile.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/io/scratch_file.h"
#include "engine/text/preprocess/handler.h"

namespace loom::data {

class SampleStore {
 public:
  SampleStore(std::filesystem::path folder, std::size_t keys) : file_(std::move(folder)), keys_(keys) {}

  void add(const SampleIds& sample);
  std::int64_t size() const { return std::ssize(lengths_); }
  // The length of each sample's first key.
  const std::vector<std::int64_t>& lengths() const { return lengths_; }
  SampleIds read(std::int64_t sample);

 private:
  io::ScratchFile file_;
  const std::size_t keys_;
  std::vector<std::uint64_t> begins_;
  std::vector<std::int64_t> lengths_;
};

}  // namespace loom::data
