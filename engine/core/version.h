// The version of Shardloom: that of the project in CMakeLists.txt.
#pragma once

#include <string>

namespace loom {

std::string shardloom_version();  // e.g. "0.1.0"

}  // namespace loom
