#include "engine/train/swap_rules.h"

#include "engine/core/error.h"

namespace loom::train {

void check_swap(const offload::SwapOptions& arguments, const TrainingInputs& inputs) {
  if (arguments.swap_attention && inputs.tuning.lora) {
    config_error(
        "{}: adapters are trained, and --swap-attention is for whole models: behind frozen weights little is saved; "
        "remove the flag, or list blocks in activation_offload_modules",
        inputs.tuning.lora->where);
  }
  if (!arguments.smart_swap || !inputs.fsdp2_config) return;
  const sharding::Fsdp2Config& config = *inputs.fsdp2_config;
  if (config.activation_offload_modules.empty()) return;
  config_error(
      "{}: activation_offload_modules is given beside --smart-swap, and both say what is swapped; remove one of them",
      config.key_mark("activation_offload_modules").text());
}

}  // namespace loom::train
