// Parallel loops of a rank over tiles that do not depend on the number of threads.
//
// Determinism  callers cut work into tiles by shape alone and combine partial results in tile order, so bits do not
//              depend on threads. A tile never blocks and never starts another parallel loop's wait on a peer.
// Threads      each rank has a ComputePool of `compute_threads` (1 by default: the loop runs in the caller).
// Source       parallel_tbb.cpp (a TBB arena a rank) or parallel_serial.cpp, chosen by linking.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace loom {

class ComputePool {
 public:
  ComputePool();  // one thread
  ~ComputePool();
  ComputePool(const ComputePool&) = delete;
  ComputePool& operator=(const ComputePool&) = delete;

  // Sets the number of threads, the caller included. Call before work starts. The serial pool accepts only 1.
  void resize(int compute_threads);
  int compute_threads() const { return threads_; }

  // Runs body(0) ... body(tiles - 1), in any order and possibly at once; returns when all are done.
  // The first exception thrown by a tile is rethrown.
  void run(std::int64_t tiles, const std::function<void(std::int64_t)>& body);

 private:
  struct Arena;
  int threads_ = 1;
  std::unique_ptr<Arena> arena_;
};

// run() on the current rank's pool; without a current rank, a plain loop.
void parallel_for(std::int64_t tiles, const std::function<void(std::int64_t)>& body);
// How many threads it has here.
int parallel_threads();

}  // namespace loom
