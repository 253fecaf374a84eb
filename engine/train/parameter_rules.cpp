#include "engine/train/parameter_rules.h"

#include <algorithm>
#include <fmt/format.h>
#include <memory>
#include <set>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"
#include "engine/regex/regex.h"

namespace loom::train {
namespace {

std::vector<std::string> trained_paths(nn::Module& module) {
  std::vector<std::string> paths;
  for (auto& [path, parameter] : module.named_parameters()) {
    if (parameter.requires_grad()) paths.push_back(path);
  }
  return paths;
}

// --- --no-decay-modules

// "model.layers.0.input_layernorm." of each module of a class; empty where there is none.
std::vector<std::string> prefixes_of(std::string_view class_name, nn::Module& module) {
  std::vector<std::string> prefixes;
  for (auto& [path, child] : module.named_modules()) {
    if (!path.empty() && child->type_name() == class_name) prefixes.push_back(path + ".");
  }
  return prefixes;
}

std::string no_such_class(const std::string& class_name, nn::Module& module) {
  std::set<std::string> classes;
  for (auto& [path, child] : module.named_modules()) {
    if (!path.empty()) classes.emplace(child->type_name());
  }
  const std::vector<std::string> known(classes.begin(), classes.end());
  const auto nearest = nearest_spelling(class_name, known);
  return fmt::format("--no-decay-modules: the model has no module of class {}; {}", shown_text(class_name),
                     nearest ? fmt::format("the nearest one is {}", *nearest)
                             : fmt::format("its classes are {}", fmt::join(known, ", ")));
}

// --- --lr-scaling-plan

struct CompiledScale {
  regex::FullMatch pattern;
  double factor = 1;
};

std::vector<CompiledScale> compiled(const std::vector<std::string>& plan) {
  std::vector<CompiledScale> scales;
  for (const std::string& text : plan) {
    const LrScale scale = parse_lr_scale(text);
    scales.push_back({regex::FullMatch(scale.pattern, "--lr-scaling-plan", regex::Part::kBeginning), scale.factor});
  }
  return scales;
}

// --- both

// What the options come to for a module; shared by the copies of a rule.
class Rules {
 public:
  Rules(const OptimizerOptions& options, nn::Module& module) : scales_(compiled(options.lr_scaling_plan)) {
    for (const std::string& class_name : options.no_decay_modules) {
      const std::vector<std::string> prefixes = prefixes_of(class_name, module);
      if (prefixes.empty()) said.push_back(no_such_class(class_name, module));
      prefixes_.insert(prefixes_.end(), prefixes.begin(), prefixes.end());
    }
    for (const std::string& text : options.no_decay_params) texts_.push_back(lower_case(text));
    note_what_matches_nothing(options, trained_paths(module));
  }

  nn::ParameterRule of(const std::string& path) const {
    const std::string lowered = lower_case(path);
    const bool below = std::ranges::any_of(prefixes_, [&](const auto& prefix) { return path.starts_with(prefix); });
    const bool has_text = std::ranges::any_of(texts_, [&](const auto& text) { return has(lowered, text); });
    const auto scale = std::ranges::find_if(scales_, [&](const CompiledScale& s) { return matches(s, path); });
    return {.decays = !below && !has_text, .lr_mult = scale == scales_.end() ? 1 : scale->factor};
  }

  std::vector<std::string> said;

 private:
  static bool has(const std::string& path, const std::string& text) { return path.find(text) != std::string::npos; }
  static bool matches(const CompiledScale& scale, const std::string& path) {
    regex::RegexScratch scratch;
    return scale.pattern.matches(path, scratch);
  }

  void note_what_matches_nothing(const OptimizerOptions& options, const std::vector<std::string>& paths) {
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      if (std::ranges::any_of(paths, [&](const std::string& path) { return has(lower_case(path), texts_[i]); }))
        continue;
      said.push_back(fmt::format("--no-decay-params: no trained parameter has {} in its path",
                                 shown_text(options.no_decay_params[i])));
    }
    for (std::size_t i = 0; i < scales_.size(); ++i) {
      if (std::ranges::any_of(paths, [&](const std::string& path) { return matches(scales_[i], path); })) continue;
      said.push_back(fmt::format("--lr-scaling-plan: no trained parameter's path begins with a match of {}",
                                 shown_text(options.lr_scaling_plan[i])));
    }
  }

  const std::vector<CompiledScale> scales_;
  std::vector<std::string> prefixes_;
  std::vector<std::string> texts_;
};

}  // namespace

ParameterRules parameter_rules(const OptimizerOptions& options, nn::Module& module) {
  if (options.no_decay_modules.empty() && options.no_decay_params.empty() && options.lr_scaling_plan.empty()) return {};
  const auto rules = std::make_shared<const Rules>(options, module);
  return {[rules](const std::string& path) { return rules->of(path); }, rules->said};
}

}  // namespace loom::train
