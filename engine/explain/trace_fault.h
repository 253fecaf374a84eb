// Which rank left the order of the others, by the trace of FSDP2 (fsdp_trace.h).
//
// Order    in each pass all ranks enter and leave the same groups. The first place at which they do not is the fault's.
// Stopped  ranks whose trace ends there while others go on. The group is the next one of the others: the rank stopped
//          before it, or in it if it had entered it.
// Skipped  ranks that went elsewhere there. The order that counts is that of most ranks; of two equal parts, that of
//          the pass before; without one, that of the lowest rank.
// None     where all ranks are at the same place, or the log is cut: then the ranks' last lines are all that is known.
// Phase    "forward", "backward"; "recompute": a forward in backward; "optimizer": between passes.
// Threads  any.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/explain/fsdp_trace.h"

namespace loom::explain {

// The last line of a rank.
struct TracedRank {
  std::int64_t rank = 0;
  std::int64_t pass = 0;  // from 1 on
  std::string event;      // "pre_forward"
  std::string phase;
  std::string group;  // "": the root's
};

struct TraceFault {
  std::int64_t rank = 0;
  bool skipped = false;  // else it stopped
  bool inside = false;   // it had entered the group
  std::int64_t pass = 0;
  std::string phase;
  std::string group;       // that it skipped, or that it stopped in or before
  std::string instead;     // skipped: the event and the group that it went to
  std::string decided_by;  // "the other ranks", "most ranks", "the pass before", "the lowest rank"
};

struct TraceFinding {
  std::vector<TracedRank> ranks;
  std::vector<TraceFault> faults;
};

// Where a pass is in a job, if all passes are of training.
struct PassOfJob {
  std::int64_t step = 1;  // from 1 on
  std::int64_t micro_batch = 0;
};

// None: no trace.
std::optional<TraceFinding> finding_of(const FsdpTrace& trace);

}  // namespace loom::explain
