#include "engine/cli/words/explained_words.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "engine/cli/words/written_flags.h"
#include "engine/core/error.h"

namespace loom::cli {
namespace {

using Words = std::vector<std::string>;

constexpr std::array<std::string_view, 11> kOfPlans{"--model-weights",
                                                    "--memory-snapshot",
                                                    "--compare",
                                                    "--sweep",
                                                    "--fit",
                                                    "--write-config",
                                                    "--row",
                                                    "--trace",
                                                    "--report",
                                                    "--tokens",
                                                    "--price-per-device-hour"};

void check(const Words& job) {
  for (const std::string_view flag : kOfPlans) {
    if (std::ranges::find(job, flag, flag_name) == job.end()) continue;
    config_error("explain plans the step of the run's job alone, and {} is of shardloom plan; remove it", flag);
  }
}

}  // namespace

std::optional<ExplainedWords> explained_words(const Words& words) {
  const auto asks_for_help = [](const std::string& word) { return word == "--help" || word == "-h"; };
  if (words.empty() || words.front() != "explain" || std::ranges::any_of(words, asks_for_help)) return std::nullopt;
  ExplainedWords explained;
  Words job(words.begin() + 1, words.end());
  if (const auto snapshot = value_in(job, "--snapshot")) {
    if (snapshot->empty()) config_error("--snapshot needs a value, but nothing follows; see --help");
    explained.snapshot = *snapshot;
    job = without_flags(job, {"--snapshot"});
  } else if (job.empty() || job.front().starts_with("--")) {
    config_error("no error text is given; use shardloom explain TEXT|FILE [the job's words], - is standard input");
  }
  if (!explained.snapshot) {
    explained.text = job.front();
    job.erase(job.begin());
  }
  check(job);
  if (const auto json = value_in(job, "--json")) {
    if (json->empty()) config_error("--json needs a value, but nothing follows; see --help");
    explained.json = *json;
  }
  explained.plan = without_flags(job, {"--json"});
  if (explained.snapshot && explained.plan.empty()) {
    config_error(
        "--snapshot is explained beside the plan of the run's job, and no job is given; add its words, as shardloom plan "
        "takes them: a configuration file, --world-size, --model-config");
  }
  if (!explained.plan.empty()) explained.plan.insert(explained.plan.begin(), "plan");
  return explained;
}

}  // namespace loom::cli
