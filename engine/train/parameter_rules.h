// The rules by which single parameters are updated: --no-decay-modules, --no-decay-params, --lr-scaling-plan.
//
// Classes   --no-decay-modules: all parameters below a module of one of these classes do not decay. The root does not
//           count.
// Texts     --no-decay-params: a parameter whose path has one of these texts in it does not decay, whatever the case of
//           the letters.
// Rates     --lr-scaling-plan: the first regular expression that matches the beginning of a parameter's path gives the
//           factor on its learning rate; without one it is 1.
// Source    MindSpeed-MM, fsdp/optimizer/optimizer.py.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/nn/module.h"
#include "engine/nn/optim/optimizer.h"
#include "engine/train/optimizer_options.h"

namespace loom::train {

// An item of --lr-scaling-plan: "model\\.embed_tokens=0.1".
struct LrScale {
  std::string pattern;
  double factor = 1;
};

// ConfigError for a text that is no REGEX=FACTOR with a factor of at least 0, or whose regular expression is none.
LrScale parse_lr_scale(std::string_view text);

struct ParameterRules {
  std::function<nn::ParameterRule(const std::string& path)> rule_of;  // empty: there are none
  std::vector<std::string> said;                                      // of what matches nothing, a line each
};

// Of the parameters of `module` that are trained. ConfigError as parse_lr_scale().
ParameterRules parameter_rules(const OptimizerOptions& options, nn::Module& module);

}  // namespace loom::train
