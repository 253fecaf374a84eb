// A configuration file of any dialect in a command line of training: `train CONFIG.yaml [--section.key value ...]`, or
// where --fsdp2-config-path stands. Its keys become flags in front of the others, which therefore win.
//
// Errors   ConfigError with all keys of the file that are refused. A file that is fsdp2_config.yaml itself, where
//          --fsdp2-config-path stands, is left to its own reader.
//
// Private to engine/cli.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/cli/words/training_flags.h"
#include "engine/dialects/translate.h"

namespace loom::cli {

struct FileWords {
  std::vector<std::string> words;                         // flags only
  std::optional<dialects::Translation> translation = {};  // none: no such file is given
};

// `words`: behind the command's name.
FileWords with_file(const std::vector<std::string>& words, Program program, const launch::Start& start,
                    const dialects::Models& models);

// What is known beside the file from flags among `words`, the launcher's ranks, and --nnodes of a plan.
dialects::Context context_of(const std::vector<std::string>& words, Program program, const launch::Start& start,
                             const dialects::Models& models);

// Words for keys of the file ("--training.lr 1e-4") taken out of `words`.
std::vector<std::string> take_overrides(std::vector<std::string>& words);

// Whether the word is the path of such a file.
bool is_file_word(const std::string& word);
// Whether it names a readable file of another dialect than fsdp2_config.yaml.
bool is_foreign_file(const std::string& word);

}  // namespace loom::cli
