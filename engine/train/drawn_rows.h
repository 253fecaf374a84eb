// The rows of a micro-batch, for the numbers that its forward draws (dropout).
//
// Rows     a sample has one, or two where samples are pairs: the chosen answers, then the rejected ones
//          (data/token_batches.h). A sample's number is unique in a run, and so are those of its rows.
// Tokens   where ranks share sequences, the parts of every row that this rank has.
#pragma once

#include <cstdint>
#include <span>

#include "engine/core/rng_state.h"
#include "engine/train/inputs.h"

namespace loom::train {

// Of a micro-batch of these samples on the current rank.
RngRows drawn_rows(const TrainSections& arguments, const TrainingInputs& inputs, std::span<const std::int64_t> samples);

}  // namespace loom::train
