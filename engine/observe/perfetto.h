// Perfetto: recordings as a trace in Chrome's JSON format, which ui.perfetto.dev opens.
//
// Process   a rank by one clock: "rank 0: virtual time on h200".
// Lanes     the phases of the steps (as the compute stream reaches them), the host, and the streams with work. On
//           the phases' lane phases lie inside their step; slices of one lane of virtual time never overlap otherwise.
// Slices    named after kernel or collective and its group ("all_gather layers.3"); bytes, and of collectives their
//           ranks, in the arguments.
// Arrows    from a work item to the next work of the stream that waited for it, or to the wait of the host.
// Counters  memory by category, and allocated and reserved as the caching allocator counts; times as in memory_points.h
// Units     timestamps are microseconds with ns as decimals, from the start of the recording.
// Threads   any.
// Source    "Trace Event Format" of the Chromium project.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "engine/device/recording.h"
#include "engine/observe/memory_points.h"
#include "engine/virtual_time/resolve.h"

namespace loom::observe {

// The parts of a recording that are shown.
struct TraceContent {
  bool kernels = true;  // each kernel of the compute stream; else those issued in one go are one slice, "12 kernels"
  bool waits = true;    // of streams, as slices; arrows are always there
  bool host = true;     // the host's work, and its waits
  bool memory = true;   // counters
  bool shapes = true;   // of matrix products and attention
};

// The work that the host's thread does itself: its time for issuing begins after that.
enum class OnHost : std::uint8_t { kNothing, kCompute, kAllStreams };

// One rank by one clock.
struct TracedRank {
  int process = 0;  // its number in the trace; each once
  std::string name{};
  const device::Recording* recording = nullptr;
  virtual_time::RankTimes times{};
  std::vector<MemoryPoint> memory{};  // ascending in time
  OnHost on_host = OnHost::kNothing;
  std::vector<std::int64_t> steps{};  // their numbers, in order; missing steps have none
};

// `about` goes into the trace's header (otherData).
std::string perfetto_trace(std::span<const TracedRank> ranks, const TraceContent& content,
                           const nlohmann::ordered_json& about);

// "0-7", "0-56 in steps of 8", "0, 3, 4": members of a group, ascending.
std::string in_short(const std::vector<int>& ranks);

}  // namespace loom::observe
