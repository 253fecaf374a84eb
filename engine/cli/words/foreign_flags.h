// Flags of Megatron, torchrun and msrun that users bring in their launch scripts and that have no value of their own
// here: taken where nothing depends on them, refused with what to write where something would. Private to engine/cli.
//
// Launcher  those of torchrun and msrun that say one machine are taken in silence.
// Others    that change nothing here are taken and named in one line (`without_effect`).
// Refused   all of them are gathered, and reported together with the unknown ones.
// Source    MindSpeed-MM, patchs/validate_args_patch.py, for those that do not go with FSDP2; the flags of its launch
//           scripts.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cli/words/flags.h"

namespace loom::cli {

inline constexpr std::string_view kAnyValue = "*";

struct ForeignFlag {
  std::string_view name;
  int values;                 // 0 or 1; -1: one or more
  std::string_view accepted;  // the values that change nothing, with '|' between them; kAnyValue; empty: always refused
  std::string_view advice;    // why not, and what to write
};

// Adds the flags of a table to a command, hidden from its help. The lists outlive the parse.
void add_without_effect(Flags& flags, std::span<const ForeignFlag> table, std::vector<std::string>& refused,
                        std::vector<std::string>& without_effect);

// What the command line gave of them.
struct ForeignFlags {
  std::vector<std::string> refused;                           // what to say of each, in the table's order
  std::vector<std::string> without_effect;                    // as they were written, in the table's order
  std::vector<std::pair<std::string, std::string>> of_model;  // of these, those that describe the model, with values
  bool bf16 = false;                                          // --bf16
  bool distributed_optimizer = false;                         // --use-distributed-optimizer
  std::optional<std::string> worker_num;                      // --worker-num: ranks of the job
};

// Adds them to a command, hidden from its help. `given` outlives the parse.
void add_foreign_flags(Flags& flags, ForeignFlags& given);

}  // namespace loom::cli
