// What the recompute flags of the command line come to, beside a fsdp2_config.yaml or without one. Private to
// engine/train.
//
// Order    apply_recompute_flags() on the file that was read; then, once the model is there, choose_layers(). Both
//          before the file is resolved against model and world.
// Kind     whole layers are recomputed without reentrancy, so that frozen inputs lose no gradients, unless the file
//          writes use_reentrant: true.
// Errors   ConfigError, on every rank alike.
#pragma once

#include <string>
#include <vector>

#include "engine/nn/module.h"
#include "engine/train/parallel_options.h"
#include "sharding/config/fsdp2_config.h"

namespace loom::train {

// Refuses Megatron's flags beside recompute_modules, and puts --recompute-keep and --recompute-every into `config`: the
// file that was given, or null. `is_edited`: recompute_modules is a search's choice, which the two may find empty.
void apply_recompute_flags(const ParallelOptions& options, bool is_edited, sharding::Fsdp2Config* config);

// Whether a reentrant kind is asked for, by flags or file.
bool is_reentrant_recompute(const ParallelOptions& options, const sharding::Fsdp2Config* config);

// What Megatron's flags come to on this model. `said`: lines for one rank.
std::vector<sharding::RecomputedModule> choose_layers(const nn::Module& model, const ParallelOptions& options,
                                                      bool fused_attention, const sharding::Fsdp2Config* config,
                                                      std::vector<std::string>& said);

}  // namespace loom::train
