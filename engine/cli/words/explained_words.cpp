#include "engine/cli/words/explained_words.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "engine/cli/words/written_flags.h"
#include "engine/core/error.h"

namespace loom::cli {
namespace {

using Words = std::vector<std::string>;

constexpr std::array<std::string_view, 9> kOfPlans{"--compare",      "--sweep",  "--fit",
                                                   "--write-config", "--row",    "--trace",
                                                   "--report",       "--tokens", "--price-per-device-hour"};

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
  if (words.size() < 2 || words[1].starts_with("--")) {
    config_error("no error text is given; use shardloom explain TEXT|FILE [the job's words], - is standard input");
  }
  ExplainedWords explained{.text = words[1], .json = {}, .plan = {}};
  const Words job(words.begin() + 2, words.end());
  check(job);
  if (const auto json = value_in(job, "--json")) {
    if (json->empty()) config_error("--json needs a value, but nothing follows; see --help");
    explained.json = *json;
  }
  explained.plan = without_flags(job, {"--json"});
  if (!explained.plan.empty()) explained.plan.insert(explained.plan.begin(), "plan");
  return explained;
}

}  // namespace loom::cli
