// run_preprocess: converts files of records to pairs .bin/.idx of token ids, or merges pairs, like MindSpeed-LLM's
// preprocess_data.
//
// Order     records are written in the order of their files, whatever the number of workers: the same bytes.
// Files     all pairs appear once all of them are complete on the disk. A run that fails, is interrupted or killed
//           leaves the earlier files; an input, a link or a device is never overwritten.
// Memory    a few batches for each worker, 12 bytes a sequence and key; 12 more a sample if samples are packed or
//           mixed, which are stored on the output's disk meanwhile.
// Threads   `workers` convert; `watch` is called in any of them, one call at a time.
// Errors    ConfigError with flag, or file and line; Error if the disk is full. An exception of `watch` ends the run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "engine/text/preprocess/handler.h"
#include "engine/text/preprocess/options.h"

namespace loom::data {

inline constexpr std::size_t kPlacesOfDrops = 3;

// Records without a sequence, for one reason.
struct DropCount {
  DropReason reason = DropReason::kTooLong;
  std::int64_t records = 0;
  std::vector<std::string> places;  // of the first kPlacesOfDrops
};

struct WrittenPair {
  std::filesystem::path prefix;
  std::int64_t documents = 0;
  std::int64_t sequences = 0;
  std::int64_t tokens = 0;
};

struct PreprocessSummary {
  std::int64_t records = 0;  // read; 0 if pairs are merged
  std::uint64_t input_bytes = 0;
  std::vector<WrittenPair> pairs;
  std::vector<DropCount> dropped;  // reasons that occurred
};

struct PreprocessProgress {
  std::uint64_t done_bytes = 0;
  std::uint64_t all_bytes = 0;
  std::int64_t records = 0;
};
using PreprocessWatcher = std::function<void(const PreprocessProgress&)>;

PreprocessSummary run_preprocess(const PreprocessOptions& options, const PreprocessWatcher& watch = {});

}  // namespace loom::data
