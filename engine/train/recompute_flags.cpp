#include "engine/train/recompute_flags.h"

#include "engine/core/error.h"

namespace loom::train {

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
