#include "engine/core/version.h"

namespace loom {

std::string shardloom_version() { return LOOM_VERSION; }

}  // namespace loom
