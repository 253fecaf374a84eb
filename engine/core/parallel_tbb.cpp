#include <optional>
#include <tbb/blocked_range.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <tbb/task_scheduler_observer.h>

#include "engine/core/count_cores.h"
#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/core/parallel.h"
#include "engine/core/rank_context.h"
#include "engine/core/thread_cores.h"

namespace loom {

namespace {

// TBB's threads serve the arenas of all ranks of a process, so each is bound anew when it enters one. The rank's host
// thread, which enters to wait for its loop, stays where it is.
class CoresOfArena final : public tbb::task_scheduler_observer {
 public:
  CoresOfArena(tbb::task_arena& arena, std::vector<int> cores)
      : tbb::task_scheduler_observer(arena), cores_(std::move(cores)) {
    observe(true);
  }
  ~CoresOfArena() override { observe(false); }

  // TBB takes no exception here. The cores were checked before the ranks began.
  void on_scheduler_entry(bool is_worker) override {
    if (!is_worker) return;
    try {
      bind_this_thread(cores_);
    } catch (const DeviceError& error) {
      log_warning("a compute thread is not bound: {}", error.what());
    }
  }

 private:
  const std::vector<int> cores_;
};

std::vector<int> compute_cores_of_rank() {
  RankContext* const context = RankContext::current_or_null();
  return context == nullptr ? std::vector<int>{} : context->slot<ThreadCores>().compute;
}

}  // namespace

struct ComputePool::Arena {
  explicit Arena(int threads) : tasks(threads) {
    if (std::vector<int> cores = compute_cores_of_rank(); !cores.empty())
      cores_of_threads.emplace(tasks, std::move(cores));
  }
  tbb::task_arena tasks;
  std::optional<CoresOfArena> cores_of_threads;  // after the arena: it watches it
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

void count_cores() { tbb::info::default_concurrency(); }

void parallel_for(std::int64_t tiles, const std::function<void(std::int64_t)>& body) {
  if (RankContext* context = RankContext::current_or_null()) {
    context->slot<ComputePool>().run(tiles, body);
    return;
  }
  for (std::int64_t tile = 0; tile < tiles; ++tile) body(tile);
}

int parallel_threads() {
  RankContext* const context = RankContext::current_or_null();
  return context == nullptr ? 1 : context->slot<ComputePool>().compute_threads();
}

}  // namespace loom
