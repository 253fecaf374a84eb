// The forwards of reward models (reward_loss.h).
//
// Outcome  batch "input_ids", int32 [2 n, S], and "lengths", a list of whole numbers: the tokens of each row before its
//          padding. Of shapes without values a batch needs no lengths.
// Process  batch "input_ids" and "targets", int32 [B, S]: the label of token i is target i, -100 where there is none;
//          position_ids and actual_seq_len go to the model where the batch has them.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/data/step.h"

namespace loom::objective {

data::ForwardStep outcome_reward_step();

// `labels`: as process_reward_loss() takes them.
data::ForwardStep process_reward_step(std::vector<std::int32_t> labels);

}  // namespace loom::objective
