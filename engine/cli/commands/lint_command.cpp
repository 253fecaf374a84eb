#include "engine/cli/commands/lint_command.h"

#include <algorithm>
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "engine/cli/commands/lint_plan.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/dialects/hub_models.h"
#include "engine/dialects/lint.h"

namespace loom::cli {
namespace {

using dialects::Finding;
using Json = nlohmann::ordered_json;

std::string place_of(const Finding& finding) {
  std::string place = escaped(finding.file);
  if (finding.line > 0) place += fmt::format(":{}", finding.line);
  if (finding.column > 0) place += fmt::format(":{}", finding.column);
  return place;
}

std::string text_of(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    text += fmt::format("{}: {}: {} [{}]\n", place_of(finding), word_of(finding.level), escaped(finding.text),
                        finding.rule);
  }
  return text;
}

Json json_of(const std::vector<Finding>& findings) {
  Json list = Json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"file", finding.file},
                    {"line", finding.line},
                    {"column", finding.column},
                    {"level", word_of(finding.level)},
                    {"rule", finding.rule},
                    {"text", finding.text}});
  }
  return list;
}

// SARIF 2.1.0.
Json sarif_of(const std::vector<Finding>& findings) {
  Json rules = Json::array(), results = Json::array();
  for (const dialects::Rule& rule : dialects::lint_rules()) {
    rules.push_back({{"id", rule.name}, {"shortDescription", {{"text", rule.about}}}});
  }
  for (const Finding& finding : findings) {
    Json place = {{"artifactLocation", {{"uri", finding.file}}}};
    if (finding.line > 0) {
      place["region"] = {{"startLine", finding.line}, {"startColumn", std::max(1, finding.column)}};
    }
    results.push_back({{"ruleId", finding.rule},
                       {"level", word_of(finding.level)},
                       {"message", {{"text", finding.text}}},
                       {"locations", Json::array({{{"physicalLocation", place}}})}});
  }
  const Json driver = {{"name", "shardloom lint"}, {"rules", rules}};
  return {{"$schema", "https://json.schemastore.org/sarif-2.1.0.json"},
          {"version", "2.1.0"},
          {"runs", Json::array({{{"tool", {{"driver", driver}}}, {"results", results}}})}};
}

}  // namespace

int run_lint(const LintArguments& arguments, std::ostream& out) {
  if (arguments.files.empty()) config_error("no file is given; use shardloom lint FILE...");
  dialects::Context context;
  context.models = dialects::hub_models();
  context.world = std::max(1, arguments.world_size);
  context.world_given = arguments.world_size > 0;
  context.flag = [&](std::string_view flag) {
    const std::string& value = flag == "--model-graph" ? arguments.model_graph : arguments.model;
    const bool is_given = (flag == "--model-config" || flag == "--model-graph") && !value.empty();
    return is_given ? std::optional(value) : std::nullopt;
  };
  std::vector<Finding> findings;
  for (const std::string& file : arguments.files) {
    const dialects::Linted linted = dialects::lint(file, {}, context);
    findings.insert(findings.end(), linted.findings.begin(), linted.findings.end());
    if (!linted.plan) continue;
    const std::vector<Finding> of_plan = plan_findings(file, *linted.plan, arguments);
    findings.insert(findings.end(), of_plan.begin(), of_plan.end());
  }
  constexpr auto kReplace = Json::error_handler_t::replace;
  if (arguments.format == "json") {
    out << json_of(findings).dump(1, ' ', false, kReplace) << "\n";
  } else if (arguments.format == "sarif") {
    out << sarif_of(findings).dump(1, ' ', false, kReplace) << "\n";
  } else {
    out << text_of(findings);
  }
  return dialects::has_error(findings) ? 1 : 0;
}

}  // namespace loom::cli
