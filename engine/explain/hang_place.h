// The place of a hang in the planned step: which collective of which group a SeqNum is.
//
// Offset   a process group may make collectives before the first step (a broadcast, a barrier), and a training loop
//          its own in each step, which the plan does not have. So a number alone is no place: type and elements of all
//          collectives that the watchdogs report have to agree with the order, and the offsets with which most of them
//          do are kept. Layers of one size leave several: the places are then several too.
// Step     (SeqNum - that of the first collective - offset) / collectives of a step. Collectives of the training loop
//          beside the plan's shift it.
// Skipped  a rank whose collective is the plan's next but d has skipped d. Where the collectives before it have the
//          same sizes d places on, any of them may be the one. Of several offsets, those with the smallest d
//          count; where they differ in the place, the candidates of all are listed.
// Traced   where a trace of FSDP2 says in which phase and micro-batch the waiting ranks are: the offsets that agree
//          with it.
// Threads  any.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/explain/hang.h"

namespace loom::explain {

// A rank that issued another collective than the others, beside the order of the plan.
struct OutOfOrder {
  OtherCollective other;
  std::optional<PlannedCollective> issued;  // what it is in the plan; none: no collective of this group
  std::int64_t ahead = 0;                   // collectives of the order; negative: behind
  bool several = false;                     // sizes leave several places: `issued` is one of them
  std::vector<PlannedCollective> skipped;   // candidates, in the order of the step
};

struct HangPlace {
  CollectiveOrder order;                      // of the group with the most agreement
  std::int64_t reported = 0;                  // different collectives of the watchdogs
  std::int64_t agreeing = 0;                  // of these, with the offsets that are kept
  std::vector<std::int64_t> offsets;          // ascending, below the collectives of a step
  std::vector<PlannedCollective> candidates;  // for the collective that is waited for, without repeats
  std::int64_t step = 0;                      // with the first offset, from 1 on
  std::vector<OutOfOrder> out_of_order;
};

// Of the collective that is waited for.
struct WaitedPlace {
  std::string phase;  // "forward", "backward"
  std::int64_t micro_batch = 0;
};

// `traced`: null without a trace. None: no collective of these types and sizes in any order, or no sizes and types in
// the log.
std::optional<HangPlace> place_of(const Hang& hang, const std::vector<CollectiveOrder>& orders,
                                  const WaitedPlace* traced = nullptr);

}  // namespace loom::explain
