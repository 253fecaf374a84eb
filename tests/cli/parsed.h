// Command lines of shardloom as tests write them, and what they come to. Private to tests/cli.
#pragma once

#include <string>
#include <vector>

#include "engine/cli/words/arguments.h"
#include "engine/core/error.h"
#include "tests/support/files.h"

namespace loom::cli {

using Words = std::vector<std::string>;

inline const launch::Start kEightCores{.cores = 8, .processes = 0, .local_processes = 0};

inline Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

inline ParsedCommand parsed(const Words& words, const launch::Start& start = kEightCores) {
  std::vector<const char*> argv = {"shardloom"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  return parse_arguments(static_cast<int>(argv.size()), argv.data(), start);
}

inline std::string refusal(const Words& words, const launch::Start& start = kEightCores) {
  return test::message_of<ConfigError>([&] { parsed(words, start); });
}

}  // namespace loom::cli
