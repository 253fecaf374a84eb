// The forwards of reward models (reward_loss.h).
//
// Outcome  batch "input_ids", int32 [2 n, S], and "lengths", a list of whole numbers: the tokens of each row before its
//          padding. A batch of shapes without values needs no lengths.
// Process  batch "input_ids" and "targets", int32 [B, S]: the label of token i is target i, -100 if there is none;
//          position_ids and actual_seq_len go to the model if the batch has them.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/data/step.h"

namespace loom::objective {

data::ForwardStep outcome_reward_step();

// `labels`: as for process_reward_loss().
data::ForwardStep process_reward_step(std::vector<std::int32_t> labels);

}  // namespace loom::objective
