// The longest sequence with which a step fits: the answer of `shardloom plan --fit seq-length`.
//
// Fits     as in plan_choice.h. The micro-batch, the world, the file and the global batch stay.
// Lengths  multiples of `step`: the least common multiple of 128 and of the mesh's unit, which is what the ranks that
//          share a sequence divide. Where the configuration refuses a length (the model has no more positions, the data
//          no more tokens), multiples of the unit up to it.
// Exact    the next length was planned too, and does not fit or is refused. Longer ones are taken to need more.
// Errors   ConfigError if no length fits, or if the shortest is refused.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "engine/plan/plan_choice.h"

namespace loom::plan {

struct LongestSequence {
  Candidate fit;
  int step = 0;                  // tokens between this length and the next one
  std::optional<int> next = {};  // none: 2^24 tokens fit, and no more are tried
  std::string why = {};          // the next does not fit, or is refused
  bool is_refused = false;       // by the configuration: memory is not the limit
};

LongestSequence longest_sequence(const ChoicePlans& plans);

// The length, the next one, and the plan.
std::string to_text(const LongestSequence& longest);
// The plan, and "longest_sequence".
nlohmann::ordered_json to_json(const LongestSequence& longest);

}  // namespace loom::plan
