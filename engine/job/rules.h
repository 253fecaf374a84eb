// Rule: what several keys of a job must be together; rules() is the one table of them.
//
// A row has keys, a condition on the job, and what holds where the condition is met: the job is refused with a text, or
// the key has no effect. A rule about one key alone is the key's range (key.h). To add a rule, add its row to
// rules_*.cpp; the command line applies the table after it has read all keys.
//
// Order     rules see the keys as they are written, with a stage and recompute flags already settled
//           (cli/words/argument_rules.h), and before ranks, batch and schedule are.
// Threads   the table is constant.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/job/key.h"

namespace loom::job {

struct Rule {
  // The rule is applied to each of these flags that is written; "--muon-*" is every flag that begins so. None: it is
  // applied to the job once.
  std::vector<std::string_view> flags;
  bool (*is_met)(const Job&) = nullptr;
  // Of the refusal. {flag} is the written flag, {value} its value, and {--lr} the value of that key; of a key with many
  // values, the first. Empty: the flag has no effect.
  std::string_view text = {};
  bool (*is_in)(Program) = nullptr;  // null: the rule is for every command
};

const std::vector<Rule>& rules();

struct RuleFindings {
  Texts refused;         // texts, in the order of the table, each once
  Texts without_effect;  // flags with their values
};

// Applies all rules. `written`: the names of the flags that are given.
RuleFindings apply_rules(const Job& job, Program program, const Texts& written);

}  // namespace loom::job
