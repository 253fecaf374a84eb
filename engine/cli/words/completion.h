// Shell completion: `shardloom completion bash|zsh|fish` prints a script that completes commands, the flags that the
// help shows, and the words of choices, also behind "--flag="; other values complete as file names. The commands
// themselves are the script's source.
//
// Errors   ConfigError for another shell.
//
// Private to engine/cli.
#pragma once

#include <string>
#include <string_view>

#include "engine/cli/words/command.h"

namespace loom::cli {

// `root`: the top-level command, with its flags and subcommands added.
std::string completion_script(std::string_view shell, const Command& root);

}  // namespace loom::cli
