#include <cstdio>

#include "engine/core/rank_context.h"
#include "engine/launch/run_ranks.h"
#include "sharding/fsdp/chunk.h"

// Rows of a parameter of 10 that each of 4 ranks owns: ceil(10 / 4) = 3, so 3 3 3 1.
int main() {
  int rows[4] = {};
  loom::launch::run_ranks(4, {}, [&](loom::RankContext& context, loom::comm::World& world) {
    rows[context.rank()] = static_cast<int>(loom::sharding::chunk_of(10, context.rank(), world.size()).rows);
  });
  std::printf("%d %d %d %d\n", rows[0], rows[1], rows[2], rows[3]);
}
