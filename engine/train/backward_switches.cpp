#include "engine/train/backward_switches.h"

#include <utility>

#include "engine/train/inputs.h"
#include "sharding/fully_shard.h"

namespace loom::train {

void BackwardSwitches::set(bool reduces, bool is_last) {
  if (!inputs_.fsdp2) return;
  const bool reshards = is_last || inputs_.fsdp2_config->reshard_after_backward;
  if (std::exchange(reduces_, reduces) != reduces) sharding::set_requires_gradient_sync(sharded_, reduces);
  if (std::exchange(reshards_, reshards) != reshards) sharding::set_reshard_after_backward(sharded_, reshards);
}

}  // namespace loom::train
