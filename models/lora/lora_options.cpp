#include "models/lora/lora_options.h"

#include <cmath>

#include "engine/core/error.h"
#include "engine/regex/regex.h"

namespace loom::models {
namespace {

// peft's meaning of rank_pattern and alpha_pattern: a key is a regex of the path or of its end behind a dot.
template <class T>
T value_of(std::string_view path, const std::map<std::string, T>& patterns, T otherwise, const std::string& where) {
  regex::RegexScratch scratch;
  for (const auto& [key, value] : patterns) {
    const regex::FullMatch regex(key, where + ": a key of rank_pattern or alpha_pattern", regex::Part::kLastNames);
    if (regex.matches(path, scratch)) return value;
  }
  return otherwise;
}

}  // namespace

std::int64_t LoraOptions::rank_of(std::string_view path) const { return value_of(path, rank_pattern, r, where); }

double LoraOptions::alpha_of(std::string_view path) const { return value_of(path, alpha_pattern, alpha, where); }

double LoraOptions::scale_of(std::string_view path) const {
  const auto rank = static_cast<double>(rank_of(path));
  return alpha_of(path) / (use_rslora ? std::sqrt(rank) : rank);
}

void check(const LoraOptions& options) {
  const auto check_pair = [&](std::int64_t r, double alpha) {
    if (r < 1) config_error("{}: the rank of adapters is {}; use a whole number of at least 1", options.where, r);
    if (!(alpha > 0) || !std::isfinite(alpha)) {
      config_error("{}: alpha of adapters is {}; use a number above 0", options.where, alpha);
    }
  };
  check_pair(options.r, options.alpha);
  for (const auto& [key, r] : options.rank_pattern) check_pair(r, options.alpha);
  for (const auto& [key, alpha] : options.alpha_pattern) check_pair(options.r, alpha);
  if (!(options.dropout >= 0 && options.dropout < 1)) {
    config_error("{}: the dropout of adapters is {}; use a number from 0 to below 1", options.where, options.dropout);
  }
  if (options.target_modules.empty() && !options.target_regex) {
    config_error("{}: no target modules are named; name at least one, or all-linear", options.where);
  }
}

}  // namespace loom::models
