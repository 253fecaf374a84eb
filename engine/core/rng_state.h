// RngState: the numbers that the operators of a rank draw (dropout). Initial weights and the order of data go by index
// (rng.h).
//
// Forward    while the forward of a micro-batch runs (RngForward), a number is a function of the run's seed, the number
//            of the row, the number of the operator's call in the forward, and the element's place in the row: token
//            and feature. It does not depend on the number of ranks, on their micro-batches, or on who has which
//            tokens; ops/general.h says how a tensor lies in the rows.
// Elsewhere  an operator takes as many numbers as it needs; number i of them is uniform_at(key, first + i).
// Replay     recompute notes the state at a forward and runs the forward again from there: the same numbers in the same
//            order.
// Threads    the rank's host thread.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/core/rank_context.h"

namespace loom {

// The rows of a micro-batch.
struct RngRows {
  // Parts [begin, begin + count) of the equal parts into which a row's tokens are cut.
  struct Parts {
    std::int64_t begin = 0, count = 0;
  };

  std::uint64_t key = 0;              // of the run
  std::vector<std::int64_t> numbers;  // of the rows, each unique in the run
  std::vector<Parts> parts = {};      // that this rank has of every row, in its order; empty: the whole row
};

struct RngState {
  std::uint64_t key = 0;                     // stream_key() of the run's seed
  std::uint64_t next = 0;                    // index of the next number
  std::shared_ptr<const RngRows> rows = {};  // of the forward that runs; null: none does
  std::uint64_t calls = 0;                   // of operators that have drawn in this forward

  // Takes `count` numbers; returns the index of the first.
  std::uint64_t take(std::uint64_t count) {
    const std::uint64_t first = next;
    next += count;
    return first;
  }
  static RngState& current() { return RankContext::current().slot<RngState>(); }
};

// The forward of a micro-batch with these rows, for this scope.
class RngForward {
 public:
  explicit RngForward(RngRows rows) {
    RngState::current().rows = std::make_shared<const RngRows>(std::move(rows));
    RngState::current().calls = 0;
  }
  ~RngForward() { RngState::current().rows = nullptr; }
  RngForward(const RngForward&) = delete;
  RngForward& operator=(const RngForward&) = delete;
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

// A call that runs over a few of its rows at a time, for this scope: each piece draws what the whole call would.
// Without a forward, or if the call has another number of rows than the micro-batch, the pieces draw one after another.
class RngPieces {
 public:
  explicit RngPieces(std::int64_t rows);
  ~RngPieces();
  RngPieces(const RngPieces&) = delete;
  RngPieces& operator=(const RngPieces&) = delete;

  // The piece of rows [first, first + count) follows.
  void begin(std::int64_t first, std::int64_t count);

 private:
  const RngState whole_;
  const bool narrows_;
  std::uint64_t calls_;  // after the piece that drew most often
};

}  // namespace loom
