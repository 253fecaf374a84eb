// Writing a job in another dialect.
#pragma once

#include <string>
#include <vector>

#include "engine/dialects/resolved.h"

namespace loom::dialects {

struct Written {
  std::string text;               // the file, or the command line
  std::vector<std::string> lost;  // flags and keys that it does not say
};

// What is lost is found by reading the text again. kFlat has keys of flags beside those of fsdp2_config.yaml.
Written write(const Resolved& resolved, Dialect dialect, const Context& context);
// The flags of `shardloom train`, one a line; keys of fsdp2_config.yaml are lost where a file has them.
Written write_flags(const Resolved& resolved);

}  // namespace loom::dialects
