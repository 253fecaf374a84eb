// The update rules of single parameters: --no-decay-modules, --no-decay-params, --lr-scaling-plan.
//
// Classes   --no-decay-modules: no parameter below a module of one of these classes decays. The root does not
//           count.
// Texts     --no-decay-params: a parameter whose path contains one of these texts does not decay; letter case is
//           ignored.
// Rates     --lr-scaling-plan: the first regular expression that matches the beginning of a parameter's path sets the
//           factor on its learning rate; without a match it is 1.
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

// ConfigError for a text that is not REGEX=FACTOR with a factor of at least 0, or whose regular expression is invalid.
LrScale parse_lr_scale(std::string_view text);

struct ParameterRules {
  std::function<nn::ParameterRule(const std::string& path)> rule_of;  // empty: there are none
  std::vector<std::string> said;                                      // a line for each rule that matches nothing
};

// The rules for the trained parameters of `module`. ConfigError as parse_lr_scale().
ParameterRules parameter_rules(const OptimizerOptions& options, nn::Module& module);

}  // namespace loom::train
