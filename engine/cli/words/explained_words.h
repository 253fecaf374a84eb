// `explain TEXT|FILE [job]`: the text, and the command line of the plan of the run's job. Private to engine/cli.
//
// Job      all words behind the text but --json: what `shardloom plan` takes. None: the text alone is explained.
// Errors   ConfigError: no text; an output or a search that is of a plan.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace loom::cli {

struct ExplainedWords {
  std::string text;
  std::optional<std::filesystem::path> json;
  std::vector<std::string> plan;  // begins with "plan"; empty: no job
};

// `words`: without the program. Nothing unless they are of explain; help is asked for without it.
std::optional<ExplainedWords> explained_words(const std::vector<std::string>& words);

}  // namespace loom::cli
