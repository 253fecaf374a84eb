// The command lines of the launchers: `shardloom torchrun FLAGS PROGRAM ARGS...`, and msrun.
//
// Words        up to the first that is no flag and no flag's value are the launcher's; the rest is passed on verbatim.
// Environment  of torchrun: PET_NNODES is --nnodes, and so for every flag; the command line wins.
// Errors       ConfigError with flag, value, allowed values, next step; a value of the environment is named as such.
//
// Private to engine/cli.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/cli/words/arguments.h"
#include "engine/cli/words/command.h"

namespace loom::cli {

class LauncherWords {
 public:
  // Adds the commands to `app`.
  explicit LauncherWords(Command& app);
  ~LauncherWords();
  LauncherWords(const LauncherWords&) = delete;
  LauncherWords& operator=(const LauncherWords&) = delete;

  // Whether the words begin with one of the commands.
  static bool are_of_launcher(const std::vector<std::string>& words);
  // Parses them with `app`.
  ParsedCommand settled(const std::vector<std::string>& words);

 private:
  struct Values;
  Command& app_;
  Command& torchrun_;
  Command& msrun_;
  const std::unique_ptr<Values> values_;
};

}  // namespace loom::cli
