// Choosing the next token from a row of logits.
//
// Greedy       the largest logit; of equal ones the first.
// Temperature  T > 0: token i with probability exp(l_i / T) / sum_j exp(l_j / T), over the top_k largest logits (of
//              equal ones the first are kept).
// Draw         number `position` of the stream `key` (loom::uniform_at): the same text for the same seed, whoever asks.
#pragma once

#include <cstdint>
#include <span>

namespace loom::models {

struct SamplingOptions {
  double temperature = 0.0;  // 0: greedy
  int top_k = 0;             // tokens drawn from; 0: all
};

// Throws Error when a logit is NaN or +infinity, or when all are -infinity (masked): the model has diverged.
std::int32_t choose_token(std::span<const float> logits, const SamplingOptions& options, std::uint64_t key,
                          std::uint64_t position);

}  // namespace loom::models
