// Rule: a condition on several keys of a job; rules() is the one table of them.
//
// A row has keys, a condition on the job, and the result if the condition is met: the job is refused with a text, or
// the key has no effect. A rule about one key alone is the key's range (key.h). To add a rule, add its row to
// rules_*.cpp; the command line applies the table after it has read all keys.
//
// Order     rules see the keys as written, with a stage and recompute flags already settled
//           (cli/words/argument_rules.h), but before ranks, batch and schedule.
// Threads   the table is constant.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "engine/job/key.h"

namespace loom::job {

struct Rule {
  // The rule is applied to each of these flags that is written; "--muon-*" means every flag that begins so. None: it is
  // applied to the job once.
  std::vector<std::string_view> flags;
  bool (*is_met)(const Job&) = nullptr;
  // The refusal. {flag} is the written flag, {value} its value, and {--lr} the value of that key; for a key with many
  // values, the first. Empty: the flag has no effect.
  std::string_view text = {};
  bool (*is_in)(Program) = nullptr;  // null: the rule applies to every command
};

const std::vector<Rule>& rules();

// Megatron's flags of recompute: rules name them, and recompute_modules of the file refuses them.
inline constexpr std::array<std::string_view, 9> kMegatronRecomputeFlags = {
    "--recompute-granularity",
    "--recompute-method",
    "--recompute-num-layers",
    "--recompute-activations",
    "--recompute-activation-function",
    "--recompute-activation-function-num-layers",
    "--recompute-norm",
    "--recompute-norm-num-layers",
    "--moe-layer-recompute"};

// Whether a key is set that only checkpoints have (torch_dcp), so that a run can go on from what it saves.
bool keeps_checkpoints(const Job& job);

struct RuleFindings {
  Texts refused;         // texts, in the order of the table, each once
  Texts without_effect;  // flags with their values
};

// Applies all rules. `written`: the names of the given flags.
RuleFindings apply_rules(const Job& job, Program program, const Texts& written);

}  // namespace loom::job
