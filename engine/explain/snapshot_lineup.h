// A real snapshot beside that of the plan of its job, group by group. Frames of a real one are files and functions of
// Python, so blocks are lined up by their sizes: a plan knows those of its groups exactly.
//
// Rows      category and group; groups that differ in numbers alone are one row: model.layers.{*}.
// Order     a real block counts for one planned block of its size that is alive at the plan's peak; shards and
//           optimizer state choose first, activations last. What is left, and has a size of another allocation of the
//           planned step, counts for that row too: there is more of it. The rest is not in the plan.
// Distance  bytes that are missing, more, or not in the plan.
// Threads   any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/explain/snapshot_peak.h"
#include "engine/plan/planner.h"

namespace loom::explain {

struct LineupRow {
  std::string category;             // "gather_buffer", as in a plan
  std::string group;                // "model.layers.{*}"; empty: of none
  std::int64_t planned_blocks = 0;  // alive at the plan's peak
  std::int64_t planned_bytes = 0;
  std::int64_t found_blocks = 0;  // of these, in the snapshot
  std::int64_t found_bytes = 0;
  std::int64_t more_blocks = 0;  // of the row's sizes, beyond them
  std::int64_t more_bytes = 0;

  std::int64_t missing_bytes() const { return planned_bytes - found_bytes; }
};

// Blocks of one size and place that are not in the plan.
struct UnplannedBlocks {
  std::int64_t bytes = 0;  // of one
  std::int64_t count = 0;
  std::string place;  // "train.py:12 forward"; empty: the file does not say

  std::int64_t total_bytes() const { return bytes * count; }
};

struct Lineup {
  SnapshotPeak planned{};
  std::vector<LineupRow> rows{};             // by category, then group
  std::vector<UnplannedBlocks> unplanned{};  // most bytes first
  std::int64_t missing_bytes = 0;
  std::int64_t more_bytes = 0;
  std::int64_t unplanned_bytes = 0;

  std::int64_t distance() const { return missing_bytes + more_bytes + unplanned_bytes; }
};

// Precondition: planned with MemoryOptions::record_allocator.
Lineup line_up(const io::MemorySnapshot& snapshot, const SnapshotPeak& peak, const plan::StepEstimate& plan);

}  // namespace loom::explain
