#include "engine/train/compose.h"

#include "engine/core/error.h"
#include "recompute/checkpoint.h"

namespace loom::train {

void apply_fsdp2_config(nn::Module& model, const sharding::Fsdp2Plan& plan, comm::World& world) {
  for (const std::string& path : plan.recomputed) {
    recompute::checkpoint(*model.find(path), {.path = path, .use_reentrant = plan.use_reentrant});
  }
  sharding::apply_fsdp2(model, plan, world);  // listed modules bottom-up, the root last, then the prefetch lists
}

void refuse_recompute_flags(std::span<const std::string> flags, const sharding::Fsdp2Config* config) {
  if (flags.empty()) return;
  const std::string& flag = flags.front();
  if (config == nullptr) {
    config_error("{} is not used here; list recompute_modules in a file for --use-torch-fsdp2 --fsdp2-config-path FILE",
                 flag);
  }
  if (config->recompute_modules.empty()) {
    config_error("{} is not used with FSDP2; list recompute_modules in {}", flag, config->file_name);
  }
  config_error("{}: recompute_modules is given beside {}; remove the flag: the file says what is recomputed",
               config->key_mark("recompute_modules").text(), flag);
}

}  // namespace loom::train
