// Includes the headers by which users enter each room: what those include has to be installed too.
#include <cstdio>

#include "engine/cli/pretrain.h"
#include "engine/core/rank_context.h"
#include "engine/device/device.h"
#include "engine/launch/run_ranks.h"
#include "engine/nn/layers.h"
#include "engine/observe/profiler.h"
#include "engine/plan/planner.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "models/hf/transformers_model.h"
#include "models/mixin/fsdp2_mixin.h"
#include "offload/host_allocator.h"
#include "recompute/checkpoint.h"
#include "sharding/fully_shard.h"
#include "sharding/parallelize.h"

// 4 ranks as threads: rank r sends r + 1 rows of 10 numbers through a layer of 3 outputs, and counts the results.
int main() {
  long results[4] = {};
  loom::launch::run_ranks(4, {}, [&](loom::RankContext& context, loom::comm::World& world) {
    loom::device::Device::install(context, {});
    loom::nn::Linear layer(10, 3, /*bias=*/false, /*init_std=*/0.02);
    layer.weight.value = loom::Tensor::zeros({3, 10}, loom::DType::kF32);
    const loom::Tensor rows = loom::Tensor::zeros({context.rank() + 1, 10}, loom::DType::kF32);
    results[context.rank()] = world.size() == 4 ? static_cast<long>(layer(rows).tensor().shape().numel()) : 0;
  });
  std::printf("%ld %ld %ld %ld\n", results[0], results[1], results[2], results[3]);
}
