#include "engine/cli/words/file_words.h"

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>

#include "engine/cli/words/written_flags.h"
#include "engine/config/document.h"
#include "engine/config/share_folder.h"
#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"

namespace loom::cli {
namespace {

using Words = std::vector<std::string>;

bool is_given(const Words& words, std::string_view flag) { return value_in(words, flag).has_value(); }

int number_in(const Words& words, std::string_view flag) {
  return parse_number<int>(value_in(words, flag).value_or("")).value_or(0);
}

// The flags of the file that the command has and the command line has not.
Words flags_of(const dialects::Translation& file, const Words& given, Program program) {
  const auto searched = value_in(given, "--fit");
  Words words;
  for (const dialects::Setting& setting : file.flags) {
    const job::Key* key = job::find_key(setting.name);
    const bool is_searched = (searched == "micro-batch" &&
                              (setting.name == "--micro-batch-size" || setting.name == "--global-batch-size")) ||
                             (searched == "seq-length" && setting.name == "--seq-length");
    if (is_searched || is_given(given, setting.name) || (key != nullptr && !key->is_in(program))) continue;
    words.push_back(setting.name);
    words.insert(words.end(), setting.words.begin(), setting.words.end());
  }
  return words;
}

void add_ranks(const dialects::Translation& file, const dialects::Context& context, Program program, const Words& given,
               const launch::Start& start, Words& words) {
  if (!file.world || context.world_given || start.ranks_are_processes()) return;
  if (plans(program) && value_in(given, "--fit") == "world-size") return;
  const std::string ranks = fmt::to_string(*file.world);
  words.insert(words.end(), {plans(program) ? "--world-size" : "--nproc-per-node", ranks});
}

// A class that is not built, and what the file's own tool would miss.
void refuse_untrainable(const dialects::Translation& file, const Words& given, Program program) {
  if (!file.model_is_built && !value_in(given, "--model-graph")) {
    config_error("{}: the model is {}, which is not built; shardloom config {} shows what the file says",
                 escaped(file.file), shown_text(file.model_class), escaped(file.file));
  }
  if (plans(program) || file.missing.empty()) return;
  config_error("{}: {} missing:\n  {}", escaped(file.file), file.missing.size() == 1 ? "a key is" : "keys are",
               fmt::join(file.missing, "\n  "));
}

FileWords with_translation(dialects::Translation file, const Words& given, Program program,
                           const dialects::Context& context, const launch::Start& start) {
  dialects::raise_refused(file);
  refuse_untrainable(file, given, program);
  FileWords result{flags_of(file, given, program)};
  add_ranks(file, context, program, given, start, result.words);
  if (file.config) result.words.emplace_back("--use-torch-fsdp2");
  if (file.config && file.dialect != dialects::Dialect::kTorchtitan) {  // which has no file
    result.words.insert(result.words.end(), {"--fsdp2-config-path", file.file});
  }
  result.words.insert(result.words.end(), given.begin(), given.end());
  result.translation = std::move(file);
  return result;
}

// Where --fsdp2-config-path names a file of another dialect.
std::optional<std::string> foreign_file(const Words& words) {
  const auto given = value_in(words, "--fsdp2-config-path");
  return given && is_foreign_file(*given) ? given : std::nullopt;
}

}  // namespace

bool is_file_word(const std::string& word) {
  return !word.starts_with('-') && (word.ends_with(".yaml") || word.ends_with(".yml") || word.ends_with(".json"));
}

bool is_foreign_file(const std::string& word) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(word, none)) return false;
  try {
    return dialects::is_foreign(config::read_text(word, "an existing YAML file"), word);
  } catch (const ConfigError&) {
    return false;  // its own reader says what is wrong
  }
}

std::vector<std::string> take_overrides(std::vector<std::string>& words) {
  Words overrides, rest;
  for (std::size_t i = 0; i < words.size();) {
    if (!dialects::is_override(words[i])) {
      rest.push_back(words[i++]);
      continue;
    }
    const bool has_value = words[i].find('=') != std::string::npos;
    overrides.push_back(words[i++]);
    while (!has_value && i < words.size() && !words[i].starts_with("--")) overrides.push_back(words[i++]);
  }
  words = std::move(rest);
  return overrides;
}

dialects::Context context_of(const std::vector<std::string>& words, Program program, const launch::Start& start,
                             const dialects::Models& models) {
  dialects::Context context;
  context.models = models;
  context.nodes = std::max(1, number_in(words, "--nnodes"));
  int ranks = number_in(words, "--nproc-per-node");
  if (plans(program)) {
    const int world = number_in(words, "--world-size");
    ranks = world > 0 ? world : ranks * context.nodes;
  }
  if (start.ranks_are_processes() && !plans(program)) ranks = start.processes;
  context.world_given = ranks > 0;
  context.world = std::max(1, ranks);
  context.flag = [words](std::string_view flag) { return value_in(words, flag); };
  return context;
}

FileWords with_file(const std::vector<std::string>& given, Program program, const launch::Start& start,
                    const dialects::Models& models) {
  Words words = given;
  std::optional<std::string> file;
  if (!words.empty() && is_file_word(words.front())) {
    file = words.front();
    words.erase(words.begin());
  } else {
    file = foreign_file(words);
    if (file) words = without_flags(words, {"--fsdp2-config-path"});
  }
  const bool is_titan = !file && std::ranges::any_of(words, dialects::is_override);
  if (!file && !is_titan) return {given};
  const Words overrides = take_overrides(words);
  const dialects::Context context = context_of(words, program, start, models);
  return with_translation(
      file ? dialects::translate(*file, overrides, context) : dialects::translate_titan(overrides, context), words,
      program, context, start);
}

}  // namespace loom::cli
