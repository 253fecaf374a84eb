// Flags of Megatron, torchrun and msrun that users bring in their launch scripts and that have no value of their own
// here: taken in silence where nothing depends on them, refused with what to write where something would. Private to
// engine/cli.
//
// Source   MindSpeed-MM, patchs/validate_args_patch.py, for those that do not go with FSDP2.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/cli/flags.h"

namespace loom::cli {

// What the command line gave of them that the checks over several flags need.
struct ForeignFlags {
  std::vector<std::string> recompute;     // --recompute-*, by name
  std::optional<std::string> load;        // --load: a distributed checkpoint
  std::optional<std::string> worker_num;  // --worker-num: ranks of the job
};

// Adds them to a command, hidden from its help. `given` outlives the parse, which throws ConfigError for the first
// refused one.
void add_foreign_flags(Flags& flags, ForeignFlags& given);

}  // namespace loom::cli
