// Launch scripts of other tools as scripts that start shardloom train.
//
// Scripts    bash, read as text and never run: words, quotes, comments, continued lines, here documents. Only the
//            changed words differ from the input.
// Launchers  torchrun, python -m torch.distributed.run or .launch, msrun, accelerate launch: replaced by `shardloom
//            train`, and the tool's own Python program is removed. Variables with flags stay, as the flags have the
//            same names here. A configuration file behind the program, or behind accelerate's --config_file, moves to
//            the front.
// Sourced    files of Ascend (set_env.sh) are sourced only where they exist.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace loom::dialects {

struct ScriptChange {
  int line = 0;  // of the input, from 1
  std::string text;
};

struct AdaptedScript {
  std::string text;
  std::vector<ScriptChange> changes;  // in the order of the lines
};

// ConfigError, with `file` and a line, for a script without a launcher, with a launcher whose program is not written
// out, or with an open quote.
AdaptedScript adapt_script(std::string_view script, const std::string& file);

}  // namespace loom::dialects
