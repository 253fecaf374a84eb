// Lint: what can be said of a configuration file without training: refused, useless and missing keys; sizes that do not
// fit the ranks; with a model, patterns that match nothing.
//
// Threads   safe from any number of threads.
#pragma once

#include <cstdint>
#include <filesystem>
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

// The rules, each with one sentence, in the order of their checks.
struct Rule {
  std::string_view name;
  std::string_view about;
};
const std::vector<Rule>& lint_rules();

// Never throws for what is wrong with the file. Sizes are checked where `context` has ranks, patterns where a flag of
// `context` or the file names a model that is built.
std::vector<Finding> lint(const std::filesystem::path& file, const job::Texts& overrides, const Context& context);

}  // namespace loom::dialects
