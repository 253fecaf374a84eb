// RngState: how far a rank has drawn, for operators whose numbers depend on when they run (dropout). Initial weights
// and the order of data do not: they go by index (rng.h).
//
// Drawing  an operator takes as many numbers as it needs; number i of them is uniform_at(key, first + i).
// Replay   recompute notes the state at a forward and runs the forward again from there: the same numbers in the same
//          order.
// Threads  the rank's host thread.
#pragma once

#include <cstdint>

#include "engine/core/rank_context.h"

namespace loom {

struct RngState {
  std::uint64_t key = 0;   // stream_key() of the run's seed
  std::uint64_t next = 0;  // index of the next number

  // Takes `count` numbers; returns the index of the first.
  std::uint64_t take(std::uint64_t count) {
    const std::uint64_t first = next;
    next += count;
    return first;
  }
  static RngState& current() { return RankContext::current().slot<RngState>(); }
};

// Draws from `past` in this scope; afterwards drawing goes on where it was.
class RngReplay {
 public:
  explicit RngReplay(const RngState& past) : present_(RngState::current()) { RngState::current() = past; }
  ~RngReplay() { RngState::current() = present_; }
  RngReplay(const RngReplay&) = delete;
  RngReplay& operator=(const RngReplay&) = delete;

 private:
  const RngState present_;
};

}  // namespace loom
