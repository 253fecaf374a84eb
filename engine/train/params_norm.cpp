#include "engine/train/params_norm.h"

#include <cmath>

#include "engine/nn/optim/gradients.h"
#include "sharding/fully_shard.h"
#include "sharding/reuse_fp32.h"

namespace loom::train {

void ParamsNorm::end_step(std::int64_t) {
  const sharding::JoinedShards joined(module_);  // of --reuse-fp32-param
  norm_ = is_sharded_ ? sharding::params_norm(module_) : std::sqrt(nn::sum_of_squares(module_.parameters()));
}

}  // namespace loom::train
