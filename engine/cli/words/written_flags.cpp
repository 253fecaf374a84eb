#include "engine/cli/words/written_flags.h"

#include <algorithm>
#include <iterator>

#include "engine/cli/words/training_flags.h"
#include "engine/job/key.h"

namespace loom::cli {
namespace {

// Flags of a plan's outputs, and of ranks, that training has too.
constexpr std::string_view kOfThisPlan[] = {"--report", "--memory-snapshot", "--nnodes", "--node-rank",
                                            "--nproc-per-node"};

// The flags that only a plan has.
std::vector<SeenFlag> flags_of_plans() {
  Command plan("", "plan");
  Flags flags(plan);
  PlanArguments values;
  int world_size = 0;
  add_plan(flags, values, world_size);
  return plan.flags();
}

bool is_any_of(const std::string& word, const std::vector<std::string_view>& names) {
  return std::ranges::find(names, flag_name(word)) != names.end();
}

}  // namespace

std::string flag_name(std::string_view word) {
  if (!word.starts_with("--")) return {};
  std::string name(word.substr(0, word.find('=')));
  std::ranges::replace(name, '_', '-');
  return name;
}

std::vector<std::string_view> names_of(std::string_view flag) {
  const job::Key* key = job::find_key(flag);
  return key == nullptr ? std::vector{flag} : key->names();
}

std::optional<std::string> value_in(const std::vector<std::string>& words, std::string_view flag) {
  const std::vector<std::string_view> names = names_of(flag);
  for (std::size_t i = words.size(); i-- > 0;) {
    if (std::ranges::find(names, flag_name(words[i])) == names.end()) continue;
    const std::size_t equal = words[i].find('=');
    if (equal != std::string::npos) return words[i].substr(equal + 1);
    return i + 1 < words.size() && !words[i + 1].starts_with("--") ? words[i + 1] : std::string{};
  }
  return std::nullopt;
}

std::vector<std::string> without_flags(const std::vector<std::string>& words,
                                       const std::vector<std::string_view>& flags) {
  std::vector<std::string_view> names;
  for (const std::string_view flag : flags) std::ranges::copy(names_of(flag), std::back_inserter(names));
  std::vector<std::string> rest;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (!is_any_of(words[i], names)) {
      rest.push_back(words[i]);
    } else if (words[i].find('=') == std::string::npos) {
      ++i;
    }
  }
  return rest;
}

std::vector<std::string> words_of_training(std::vector<std::string> planned) {
  std::vector<std::string_view> with_values{std::begin(kOfThisPlan), std::end(kOfThisPlan)};
  const std::vector<SeenFlag> of_plans = flags_of_plans();
  for (const SeenFlag& flag : of_plans) {
    if (flag.most > 0) {
      with_values.push_back(flag.name);
    } else {
      std::erase_if(planned, [&](const std::string& word) { return flag_name(word) == flag.name; });
    }
  }
  std::vector<std::string> words = without_flags(planned, with_values);
  if (!words.empty() && words.front() == "plan") words.front() = "train";
  return words;
}

}  // namespace loom::cli
