// run_preprocess: files of records as pairs .bin/.idx of token ids, or pairs merged, as MindSpeed-LLM's preprocess_data
// makes them.
//
// Order     records are written in the order of their files, whatever the number of workers: the same bytes.
// Files     all pairs appear when all of them are whole on the disk. A run that fails, is interrupted or killed leaves
//           what was there before; nothing is written over an input, a link or a device.
// Memory    a few batches for each worker, 12 bytes a sequence and key; 12 more a sample where samples are packed or
//           mixed, which are put aside on the disk of the output meanwhile.
// Threads   `workers` convert; `watch` is called in any of them, one call at a time.
// Errors    ConfigError with flag, or file and line; Error where the disk is full. What `watch` throws ends the run.
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

// Records that gave no sequence, for one reason.
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
  std::int64_t records = 0;  // read; 0 where pairs are merged
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
