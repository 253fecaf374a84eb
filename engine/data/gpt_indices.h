// The three indices that make samples of a data set's sequences, as Megatron's GPTDataset builds them.
//
// Document index   sequences in the order in which they are read, all epochs one after another.
// Sample index     where each sample begins: a place in the document index and a token of that sequence; one entry more
//                  than there are samples. A sample has seq_length + 1 tokens, from its entry to the next one's token,
//                  which both have.
// Shuffle index    the order in which samples are read.
// Source           megatron/core/datasets/gpt_dataset.py, helpers.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "engine/data/data_split.h"

namespace loom::data {

// How many samples there are, and which of them are shuffled together.
struct GptPlan {
  std::int64_t tokens_per_epoch = 0;
  std::int64_t epochs = 1;
  std::int64_t samples = 0;
  // Samples of all epochs but the last, where that one is shuffled apart: it would be hardly used otherwise.
  std::optional<std::int64_t> before_last_epoch = {};
};

struct GptPlanRequest {
  std::int64_t tokens_per_epoch = 0;
  std::optional<std::int64_t> samples = {};  // at least that many; none: one epoch
  std::int64_t seq_length = 0;               // at least 1
  bool keep_partial = false;                 // the last sample may be shorter than the others
};

// None if samples are needed but there is no token, or if the numbers exceed 63 bits or the epochs 31.
std::optional<GptPlan> plan_samples(const GptPlanRequest& request);

struct GptIndices {
  std::vector<std::int32_t> document;
  std::vector<std::int64_t> sample;  // pairs: place in the document index, token
  std::vector<std::int64_t> shuffle;
};

// `length`: of a sequence, in tokens; the lengths in `range` sum to plan.tokens_per_epoch. Time and memory grow with
// epochs times sequences, and with samples.
GptIndices build_indices(const GptPlan& plan, const SequenceRange& range, std::int64_t seq_length, std::uint32_t seed,
                         const std::function<std::int32_t(std::int64_t)>& length);

}  // namespace loom::data
