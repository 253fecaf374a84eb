// Includes the headers by which users enter each room: what those include has to be installed too.
#include <cstdio>

#include "models/hub/model_hub.h"
#include "shardloom/engine/cli/pretrain.h"
#include "shardloom/engine/core/rank_context.h"
#include "shardloom/engine/device/device.h"
#include "shardloom/engine/launch/run_ranks.h"
#include "shardloom/engine/nn/layers.h"
#include "shardloom/engine/observe/profiler.h"
#include "shardloom/engine/plan/planner.h"
#include "shardloom/engine/tensor/autograd.h"
#include "shardloom/engine/tensor/ops.h"
#include "shardloom/models/hf/transformers_model.h"
#include "shardloom/models/mixin/fsdp2_mixin.h"
#include "shardloom/offload/host_allocator.h"
#include "shardloom/recompute/checkpoint.h"
#include "shardloom/sharding/fully_shard.h"
#include "shardloom/sharding/parallelize.h"

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
  std::printf("%ld %ld %ld %ld %d\n", results[0], results[1], results[2], results[3], kOwnModelHub);
}
