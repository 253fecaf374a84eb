#include "engine/cli/words/compared_words.h"

#include <algorithm>
#include <string_view>

#include "engine/cli/words/file_words.h"
#include "engine/cli/words/written_flags.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::cli {
namespace {

using Words = std::vector<std::string>;

constexpr std::string_view kFlag = "--compare";

// The words behind the flag, which leave `rest` with it.
Words take_files(Words& rest) {
  const auto at = std::ranges::find(rest, kFlag, flag_name);
  const auto end = std::find_if(at + 1, rest.end(), [](const std::string& word) { return word.starts_with("-"); });
  Words files(at + 1, end);
  if (const std::size_t equal = at->find('='); equal != std::string::npos)
    files.insert(files.begin(), at->substr(equal + 1));
  rest.erase(at, end);
  return files;
}

void check_compared(const Words& files, const Words& rest) {
  if (files.size() != 2) {
    config_error("--compare has {} file{}; give two, A and B", files.size(), files.size() == 1 ? "" : "s");
  }
  if (rest.size() > 1 && is_file_word(rest[1])) {
    config_error("--compare gives the files of two plans, and the command line begins with {}; remove it",
                 shown_text(rest[1]));
  }
  for (const char* flag :
       {"--fsdp2-config-path", "--compare", "--report", "--model-weights", "--trace", "--memory-snapshot", "--sweep",
        "--fit", "--smart-swap", "--adaptive-recompute-device-swap"}) {
    if (std::ranges::find(rest, flag, flag_name) == rest.end()) continue;
    config_error("--compare shows two plans, each with its own file, and {} is {}; remove one of them", flag,
                 std::string_view(flag) == kFlag ? "given twice" : "of one plan");
  }
}

Words with_file(const std::string& file, Words words) {
  if (is_foreign_file(file)) {
    words.insert(words.begin() + 1, file);
  } else {
    words.insert(words.end(), {"--use-torch-fsdp2", "--fsdp2-config-path", file});
  }
  return words;
}

}  // namespace

std::optional<ComparedWords> compared_words(const Words& words) {
  const auto asks_for_help = [](const std::string& word) { return word == "--help" || word == "-h"; };
  if (words.empty() || words.front() != "plan" || std::ranges::find(words, kFlag, flag_name) == words.end() ||
      std::ranges::any_of(words, asks_for_help)) {
    return std::nullopt;
  }
  Words rest = words;
  const Words files = take_files(rest);
  check_compared(files, rest);
  ComparedWords compared;
  for (std::size_t i = 0; i < 2; ++i) {
    compared.files[i] = files[i];
    compared.words[i] = with_file(files[i], rest);
  }
  return compared;
}

}  // namespace loom::cli
