// What a memory snapshot of a run says beside the plan of its job: which groups hold more or less than planned, what
// the plan does not have, and which one setting, if the run had it otherwise, would bring the plan nearer.
//
// Plan      of the job in unlimited memory, on the rank whose figures a plan shows; the run is taken to be of one like
//           it.
// Settings  tried one at a time, by a plan each, where the job has a file: reshard_after_forward, prefetch, recompute,
//           param_dtype, reduce_dtype, offload. None is tried where the plan already agrees to a hundredth. The nearest
//           one is named if it takes at least a fifth off the distance (snapshot_lineup.h).
// Threads   the calling thread, and those of plans.
// Errors    ConfigError for the snapshot; those of plans.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/explain/explanation.h"
#include "engine/explain/snapshot_lineup.h"

namespace loom::explain {

// A setting of the job, as it would be otherwise.
struct TriedSetting {
  std::string change;             // "reshard_after_forward: false"
  std::int64_t active_bytes = 0;  // at the peak of its plan
  std::int64_t distance_bytes = 0;
  std::string refused{};  // why the job cannot have it; empty: it was planned
};

struct SnapshotExplanation {
  std::string file;
  SnapshotPeak real;
  std::string model{};
  std::string device{};  // of the plan
  int rank = 0;          // of the plan
  Lineup lineup{};
  std::vector<TriedSetting> tried{};  // nearest first, refused ones last
  bool explains = false;              // the first of them
  bool agrees = false;                // the plan as it is
};

SnapshotExplanation explain_snapshot(const std::filesystem::path& file, const JobOfRun& job);

// At most kTextColumns a line.
std::string to_text(const SnapshotExplanation& explanation);
nlohmann::ordered_json to_json(const SnapshotExplanation& explanation);

}  // namespace loom::explain
