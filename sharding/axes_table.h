// The table of axes at the start of a run whose ranks share experts, sequences or matrices: sizes, this rank's place,
// and over which ranks each class of parameters is sharded, kept as copies and reduced.
//
// Matrices   "tp 2 x 4": two parts, each sharded over 4 ranks. Classes are cut matrices, heads of keys and values of
//            which neighbours have copies, and what each rank has whole: replicated, with equal gradients, or with
//            partial ones, which are summed over the ranks that share matrices ("4 x tp 2").
#pragma once

#include <string>

#include "sharding/policy.h"

namespace loom::sharding {

struct TensorShares;

// `shares`: of the model, or null. Empty where ranks share nothing: the mode says it all.
std::string axes_table(const FullyShardOptions& options, const TensorShares* shares);

}  // namespace loom::sharding
