// The table of axes at the start of a run whose ranks share experts or sequences: sizes, this rank's place, and over
// which ranks each class of parameters is sharded, kept as copies and reduced.
#pragma once

#include <string>

#include "sharding/policy.h"

namespace loom::sharding {

// Empty where ranks share neither: the mode says it all.
std::string axes_table(const FullyShardOptions& options);

}  // namespace loom::sharding
