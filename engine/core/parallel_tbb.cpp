#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/core/rank_context.h"

namespace loom {

struct ComputePool::Arena {
  explicit Arena(int threads) : tasks(threads) {}
  tbb::task_arena tasks;
};

ComputePool::ComputePool() = default;
ComputePool::~ComputePool() = default;

void ComputePool::resize(int compute_threads) {
  require(compute_threads >= 1, "compute threads must be at least 1, got {}", compute_threads);
  threads_ = compute_threads;
  arena_ = compute_threads > 1 ? std::make_unique<Arena>(compute_threads) : nullptr;
}

void ComputePool::run(std::int64_t tiles, const std::function<void(std::int64_t)>& body) {
  if (!arena_ || tiles == 1) {
    for (std::int64_t tile = 0; tile < tiles; ++tile) body(tile);
    return;
  }
  arena_->tasks.execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<std::int64_t>(0, tiles, 1),
        [&](const tbb::blocked_range<std::int64_t>& range) {
          for (std::int64_t tile = range.begin(); tile != range.end(); ++tile) body(tile);
        },
        tbb::simple_partitioner());
  });
}

void parallel_for(std::int64_t tiles, const std::function<void(std::int64_t)>& body) {
  if (RankContext* context = RankContext::current_or_null()) {
    context->slot<ComputePool>().run(tiles, body);
    return;
  }
  for (std::int64_t tile = 0; tile < tiles; ++tile) body(tile);
}

}  // namespace loom
