#include "engine/core/count_cores.h"
#include "engine/core/error.h"
#include "engine/core/parallel.h"

namespace loom {

struct ComputePool::Arena {};

ComputePool::ComputePool() = default;
ComputePool::~ComputePool() = default;

void ComputePool::resize(int compute_threads) {
  if (compute_threads != 1) {
    config_error("{} compute threads requested, but this build has serial loops (LOOM_PARALLEL=serial); use 1",
                 compute_threads);
  }
}

void ComputePool::run(std::int64_t tiles, const std::function<void(std::int64_t)>& body) {
  for (std::int64_t tile = 0; tile < tiles; ++tile) body(tile);
}

void count_cores() {}

void parallel_for(std::int64_t tiles, const std::function<void(std::int64_t)>& body) {
  for (std::int64_t tile = 0; tile < tiles; ++tile) body(tile);
}

int parallel_threads() { return 1; }

}  // namespace loom
