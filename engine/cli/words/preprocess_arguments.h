// What `shardloom preprocess` is asked for.
#pragma once

#include <string>
#include <vector>

#include "engine/text/preprocess/options.h"

namespace loom::cli {

// `shardloom preprocess`.
struct PreprocessArguments {
  data::PreprocessOptions options;
  std::vector<std::string> without_effect;  // flags that change nothing here
};

}  // namespace loom::cli
