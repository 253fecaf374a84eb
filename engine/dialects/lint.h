// Lint: what can be said of a configuration file without training: refused, useless and missing keys; sizes that do not
// fit the ranks; with a model, patterns that match nothing. A plan says more (engine/cli/commands/lint_plan.h).
//
// Threads   safe from any number of threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/dialects/translate.h"

namespace loom::dialects {

enum class Level : std::uint8_t { kError, kWarning, kNote };
std::string_view word_of(Level level);  // "error"

struct Finding {
  std::string file;
  int line = 0;  // 0: the file as a whole
  int column = 0;
  Level level = Level::kError;
  std::string_view rule;  // "refused-key"
  std::string text;
};

// `text` may begin with its place, "file:line:column: "; other texts are of the file as a whole.
Finding finding_of(const std::string& file, Level level, std::string_view rule, std::string_view text);

// The rules of a plan.
inline constexpr std::string_view kJobRefused = "job-refused";
inline constexpr std::string_view kPlanWarns = "plan-warns";
inline constexpr std::string_view kDoesNotFit = "does-not-fit";

// The rules, each with one sentence, in the order of their checks.
struct Rule {
  std::string_view name;
  std::string_view about;
};
const std::vector<Rule>& lint_rules();

// What a plan of the file needs to be given.
struct PlanOfFile {
  int world = 1;            // the ranks of `context` or the file, else the sharding_size of the file
  bool has_length = false;  // the file says the length of a sequence
};

struct Linted {
  std::vector<Finding> findings;
  // None with an error, or where neither file nor `context` names a model that is built.
  std::optional<PlanOfFile> plan = {};
};
bool has_error(const std::vector<Finding>& findings);

// Never throws for what is wrong with the file. Sizes are checked where `context` has ranks, patterns where a flag of
// `context` or the file names a model that is built.
Linted lint(const std::filesystem::path& file, const job::Texts& overrides, const Context& context);

}  // namespace loom::dialects
