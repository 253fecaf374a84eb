#include "engine/job/rules.h"

#include <algorithm>
#include <iterator>

#include "engine/core/shown_text.h"
#include "engine/job/rule_rows.h"

namespace loom::job {
namespace {

bool names(std::string_view pattern, std::string_view flag) {
  return pattern.ends_with('*') ? flag.starts_with(pattern.substr(0, pattern.size() - 1)) : flag == pattern;
}

std::string value_text(const Job& job, std::string_view flag) {
  const Key* key = find_key(flag);
  require(key != nullptr, "a rule names {}, which is no key", flag);
  const Texts words = words_of(*key, key->get(job));
  return words.empty() ? std::string{} : shown_text(words.front());
}

std::string filled_in(std::string_view text, const Job& job, std::string_view flag) {
  std::string filled;
  for (std::size_t open = text.find('{'); open != std::string_view::npos; open = text.find('{')) {
    const std::size_t close = text.find('}', open);
    const std::string_view name = text.substr(open + 1, close - open - 1);
    filled += text.substr(0, open);
    filled += name == "flag" ? std::string(flag) : value_text(job, name == "value" ? flag : name);
    text.remove_prefix(close + 1);
  }
  return filled.append(text);
}

void add_once(Texts& texts, std::string text) {
  if (std::ranges::find(texts, text) == texts.end()) texts.push_back(std::move(text));
}

void find(const Rule& rule, const Job& job, std::string_view flag, RuleFindings& findings) {
  if (!rule.text.empty()) return add_once(findings.refused, filled_in(rule.text, job, flag));
  const std::string value = value_text(job, flag);
  findings.without_effect.push_back(value.empty() ? std::string(flag) : std::string(flag) + " " + value);
}

// Those that the rule is applied to; one empty name for a rule about the job.
Texts flags_of(const Rule& rule, const Texts& written) {
  if (rule.flags.empty()) return {""};
  Texts flags;
  std::ranges::copy_if(written, std::back_inserter(flags), [&](const std::string& flag) {
    return std::ranges::any_of(rule.flags, [&](std::string_view pattern) { return names(pattern, flag); });
  });
  return flags;
}

// A condition may look at files that are wrong themselves.
bool is_met(const Rule& rule, const Job& job, RuleFindings& findings) {
  try {
    return rule.is_met(job);
  } catch (const ConfigError& error) {
    add_once(findings.refused, error.what());
    return false;
  }
}

}  // namespace

const std::vector<Rule>& rules() {
  static const std::vector<Rule> table = [] {
    std::vector<Rule> rows;
    add_model_rules(rows);
    add_parallel_rules(rows);
    add_objective_rules(rows);
    add_data_rules(rows);
    add_schedule_rules(rows);
    add_optimizer_rules(rows);
    add_recompute_rules(rows);
    add_memory_rules(rows);
    add_checkpoint_rules(rows);
    add_output_rules(rows);
    return rows;
  }();
  return table;
}

RuleFindings apply_rules(const Job& job, Program program, const Texts& written) {
  RuleFindings findings;
  for (const Rule& rule : rules()) {
    if (rule.is_in != nullptr && !rule.is_in(program)) continue;
    const Texts flags = flags_of(rule, written);
    if (flags.empty() || !is_met(rule, job, findings)) continue;
    for (const std::string& flag : flags) find(rule, job, flag, findings);
  }
  return findings;
}

}  // namespace loom::job
