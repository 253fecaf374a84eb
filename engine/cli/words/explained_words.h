// `explain TEXT|FILE [job]` and `explain --snapshot FILE job`: the text or snapshot, and the command line of the plan
// of the run's job. Private to engine/cli.
//
// Job      all words behind the text but --json: what `shardloom plan` takes. None: the text alone is explained.
// Errors   ConfigError: no text; a snapshot without a job; an output or a search that is of a plan.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace loom::cli {

struct ExplainedWords {
  std::string text;
  std::optional<std::filesystem::path> snapshot;  // then there is a job and no text
  std::optional<std::filesystem::path> json;
  std::vector<std::string> plan;  // begins with "plan"; empty: no job
};

// `words`: without the program. Nothing unless they are of explain; help is asked for without it.
std::optional<ExplainedWords> explained_words(const std::vector<std::string>& words);

}  // namespace loom::cli
