// `explain TEXT|FILE [job]` and `explain --snapshot FILE --trace FILE job`: the text, or the files of the run, and the
// command line of the plan of its job. Private to engine/cli.
//
// Job      all words behind the text but --json: what `shardloom plan` takes. None: the text alone is explained.
// Errors   ConfigError: no text; a file without a job; an output or a search that is of a plan.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace loom::cli {

struct ExplainedWords {
  std::string text;
  std::optional<std::filesystem::path> snapshot;  // with it or a trace there is a job and no text
  std::optional<std::filesystem::path> trace;
  std::optional<std::filesystem::path> json;
  std::vector<std::string> plan;  // begins with "plan"; empty: no job
};

// `words`: without the program. Nothing unless they are of explain; help is asked for without it.
std::optional<ExplainedWords> explained_words(const std::vector<std::string>& words);

}  // namespace loom::cli
