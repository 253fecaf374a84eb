// ExpertLoad: how a plan shares tokens among experts, as a slot of the planned rank's context. A run counts them.
//
// Rank     the planned one has the experts that get most: with E experts on e ranks, the E / e neighbours whose shares
//          add up to most. It decides the time of the step and the memory.
#pragma once

#include <vector>

namespace loom::models {

struct ExpertLoad {
  std::vector<double> shares = {};  // one for each expert of a layer, relative; empty: balanced
};

}  // namespace loom::models
