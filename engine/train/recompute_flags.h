// The effect of the command line's recompute flags, beside a fsdp2_config.yaml or without one. Private to
// engine/train.
//
// Order    apply_recompute_flags() on the file as read; then, once the model exists, choose_layers(). Both
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
// file of the run, or null. `is_edited`: recompute_modules comes from a search, and the two may find it empty.
void apply_recompute_flags(const ParallelOptions& options, bool is_edited, sharding::Fsdp2Config* config);

// Whether flags or file select a reentrant kind.
bool is_reentrant_recompute(const ParallelOptions& options, const sharding::Fsdp2Config* config);

// The modules that Megatron's flags select in this model. `said`: lines for one rank to print.
std::vector<sharding::RecomputedModule> choose_layers(const nn::Module& model, const ParallelOptions& options,
                                                      bool fused_attention, const sharding::Fsdp2Config* config,
                                                      std::vector<std::string>& said);

}  // namespace loom::train
