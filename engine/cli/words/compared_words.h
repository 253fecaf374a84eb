// `plan ... --compare A B`: the command lines of the two plans. Private to engine/cli.
//
// Files    A and B each stand for what the command line has no other file for: fsdp2_config.yaml, also by its name in
//          configs/fsdp2, or a file of another dialect, with its flags.
// Errors   ConfigError: not two files, another file beside them, an output or a search that is of one plan.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

namespace loom::cli {

struct ComparedWords {
  std::array<std::string, 2> files;
  std::array<std::vector<std::string>, 2> words;
};

// `words`: without the program. Nothing unless they are of a plan with --compare; help is asked for without it.
std::optional<ComparedWords> compared_words(const std::vector<std::string>& words);

}  // namespace loom::cli
