// Checks of the keys for recompute: Megatron's and MindSpeed's for the layers of a decoder, and the keys beside
// recompute_modules. Private to engine/cli.
//
// Errors   ConfigError for combinations that no model could have; combinations that depend on the model or the file are
//          refused on reading them (models/decoder/layer_recompute.h, engine/train/recompute_flags.h).
#pragma once

#include "engine/cli/words/arguments.h"
#include "engine/cli/words/flags.h"

namespace loom::cli {

// Checks them against each other, and fills in values that follow from others.
void settle_recompute(const Command& app, train::ParallelOptions& parallel);

}  // namespace loom::cli
