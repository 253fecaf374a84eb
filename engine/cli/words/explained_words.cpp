#include "engine/cli/words/explained_words.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "engine/cli/words/written_flags.h"
#include "engine/core/error.h"

namespace loom::cli {
namespace {

using Words = std::vector<std::string>;

constexpr std::array<std::string_view, 10> kOfPlans{
    "--model-weights", "--memory-snapshot",      "--compare", "--sweep", "--fit", "--write-config", "--row", "--report",
    "--tokens",        "--price-per-device-hour"};

// The value of a flag, which is taken out of the words; none: it is not given.
std::optional<std::filesystem::path> taken_file(Words& job, const char* flag) {
  const auto value = value_in(job, flag);
  if (!value) return std::nullopt;
  if (value->empty()) config_error("{} needs a value, but nothing follows; see --help", flag);
  job = without_flags(job, {flag});
  return *value;
}

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
  explained.snapshot = taken_file(job, "--snapshot");
  explained.trace = taken_file(job, "--trace");
  const bool has_file = explained.snapshot || explained.trace;
  if (!has_file && (job.empty() || job.front().starts_with("--"))) {
    config_error("no error text is given; use shardloom explain TEXT|FILE [the job's words], - is standard input");
  }
  if (!has_file) {
    explained.text = job.front();
    job.erase(job.begin());
  }
  check(job);
  explained.json = taken_file(job, "--json");
  explained.plan = std::move(job);
  if (has_file && explained.plan.empty()) {
    config_error(
        "{} is explained beside the plan of the run's job, and no job is given; add its words, as shardloom plan takes "
        "them: a configuration file, --world-size, --model-config",
        explained.snapshot ? "--snapshot" : "--trace");
  }
  if (!explained.plan.empty()) explained.plan.insert(explained.plan.begin(), "plan");
  return explained;
}

}  // namespace loom::cli
