// Ordered work: items are made one after another, worked on by several threads, and taken in the order they were made.
// The items taken, and their order, do not depend on the number of threads.
//
// Made     by `next`, one at a time; nothing behind the last one.
// Memory   at most kItemsPerWorker items for each worker exist at a time.
// Errors   the first one in order is rethrown, whichever came first in time; items behind it are not taken.
// Threads  the caller is one of the workers. next() and take() run in any of them, one call of each at a time.
// Source   ordered_work_tbb.cpp (oneTBB's parallel_pipeline) or ordered_work_serial.cpp, chosen by linking.
#pragma once

#include <functional>
#include <memory>

namespace loom {

inline constexpr int kItemsPerWorker = 3;

class OrderedItem {
 public:
  virtual ~OrderedItem() = default;
  // May run at the same time as other items. `worker` is in [0, workers) and no two calls have it at a time.
  virtual void work(int worker) = 0;
  virtual void take() = 0;
};

// ConfigError for more than one worker in a build with serial loops.
void run_in_order(int workers, const std::function<std::unique_ptr<OrderedItem>()>& next);

}  // namespace loom
