// What a plan of a configuration file finds beyond its keys: rules that tie keys, groups and ties that do not fit the
// model, warnings of the schedule, and memory that does not fit. Private to engine/cli.
#pragma once

#include <string>
#include <vector>

#include "engine/cli/words/arguments.h"
#include "engine/dialects/lint.h"

namespace loom::cli {

// Memory is checked only with --device. A file without a length of its own is planned with the default, or the longest
// sequence of a model that ends before.
std::vector<dialects::Finding> plan_findings(const std::string& file, const dialects::PlanOfFile& plan,
                                             const LintArguments& arguments);

}  // namespace loom::cli
