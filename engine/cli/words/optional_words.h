// The commands that a build may leave out: LOOM_TALK has generate and chat, LOOM_TEXT preprocess, LOOM_IMAGES
// llava_instruct_2_mllm_demo_format, LOOM_CONVERT convert, inspect and merge. A build without them compiles
// *_words_absent.cpp. Private to engine/cli.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/cli/words/arguments.h"
#include "engine/cli/words/command_words.h"
#include "engine/launch/start.h"

namespace loom::cli {

class OptionalWords {
 public:
  virtual ~OptionalWords() = default;

  // The words of a command line, with files, environment and the spellings of other programs written out.
  virtual std::vector<std::string> written_out(std::vector<std::string> words) const { return words; }
  // The commands with flags.
  virtual Apps apps() const = 0;
  // After the parse; none where `chosen` is none of these commands. ConfigError with all that is not taken.
  virtual std::optional<OptionalArguments> settled(const Command& chosen, const launch::Start& start) = 0;
};

// Adds the commands to `app`; null in a build without them.
std::unique_ptr<OptionalWords> talk_words(Command& app);
std::unique_ptr<OptionalWords> text_words(Command& app);
std::unique_ptr<OptionalWords> multimodal_words(Command& app);
std::unique_ptr<OptionalWords> convert_words(Command& app);

}  // namespace loom::cli
