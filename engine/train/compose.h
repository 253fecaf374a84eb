// What a fsdp2_config.yaml asks for, done to a model. The order is the design, and stands in one function.
//
// Errors   ConfigError, on every rank alike.
#pragma once

#include <span>
#include <string>

#include "sharding/apply.h"

namespace loom::train {

// Recompute first, sharding second: the hooks that gather and reduce then stand outside what is run again in backward,
// and each group is gathered once for both. Collective.
void apply_fsdp2_config(nn::Module& model, const sharding::Fsdp2Plan& plan, comm::World& world);

// Megatron's own recompute flags do not go with the YAML: refuses the first of `flags`, saying what to do. `config` is
// the file that was given, or null.
void refuse_recompute_flags(std::span<const std::string> flags, const sharding::Fsdp2Config* config);

}  // namespace loom::train
