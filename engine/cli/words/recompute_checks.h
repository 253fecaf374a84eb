// Checks of the keys for recompute: Megatron's and MindSpeed's for the layers of a decoder, and the keys that go with
// recompute_modules. Private to engine/cli.
//
// Errors   ConfigError for combinations that no model could have; what depends on the model or the file is refused
//          where they are read (models/decoder/layer_recompute.h, engine/train/recompute_flags.h).
#pragma once

#include "engine/cli/words/arguments.h"
#include "engine/cli/words/flags.h"

namespace loom::cli {

// Checks them against each other, and fills in what one says of another.
void settle_recompute(const Command& app, train::ParallelOptions& parallel);

}  // namespace loom::cli
