// The groups of one step in virtual time: what each moved and computed, and when compute idled for its
// collectives.
//
// Group    of a collective: its own. Of a kernel: the one that the compute stream waited for last; kernels of the
//          optimizer have none.
// Exposed  a collective runs and no kernel does (virtual_time/breakdown.h). Of several collectives, the one that began
//          first is charged, so that the sum over groups equals the breakdown's.
// Threads  any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/device/recording.h"
#include "engine/virtual_time/resolve.h"

namespace loom::observe {

// The groups of a recording's entries, entry by entry in their order.
class EntryGroups {
 public:
  explicit EntryGroups(const device::Recording& recording) : recording_(recording) {}

  // The group of the next entry; empty: none. "(root)" for the root.
  std::string next(const device::Entry& entry);

 private:
  const device::Recording& recording_;
  std::string waited_for_;
};

struct GroupSum {
  std::string group;
  std::int64_t gathers = 0;
  std::int64_t gathered_bytes = 0;  // whole, by one gather; the largest
  std::int64_t gather_ns = 0;       // all-gathers
  std::int64_t reductions = 0;      // reduce-scatters and all-reduces
  std::int64_t reduced_bytes = 0;   // whole, by one reduction; the largest
  std::int64_t reduce_ns = 0;
  std::int64_t exposed_ns = 0;
  std::int64_t compute_ns = 0;
};

struct ExposedGap {
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  std::string group;  // charged
};

struct StepGroups {
  std::vector<GroupSum> groups;  // in the order in which the step reaches them
  std::vector<ExposedGap> gaps;  // in the order of time
};

StepGroups groups_of_step(const device::Recording& recording, const virtual_time::RankTimes& times);

}  // namespace loom::observe
