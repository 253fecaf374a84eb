// Megatron's own recompute flags do not go with the YAML, which lists recompute_modules. Private to engine/train.
//
// Errors   ConfigError, on every rank alike.
#pragma once

#include <span>
#include <string>

#include "sharding/config/fsdp2_config.h"

namespace loom::train {

// Refuses the first of `flags`, saying what to do. `config` is the file that was given, or null.
void refuse_recompute_flags(std::span<const std::string> flags, const sharding::Fsdp2Config* config);

}  // namespace loom::train
