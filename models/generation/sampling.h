// Choosing the next token from a row of logits.
//
// Order        repetition penalty, temperature, top_k, top_p, min_p, softmax, one draw; as in transformers.
// Penalty      r > 0: logits of tokens that the row has, prompt included, are divided by r where positive, else
//              multiplied.
// Greedy       temperature 0: the largest logit after the penalty; ties go to the first.
// Temperature  T > 0: token i with probability exp(l_i / T) / sum_j exp(l_j / T), over the kept tokens:
//              top_k   the k-th largest logit and all that are at least as large (ties stay); a k above the vocabulary
//                      keeps all
//              top_p   the likeliest tokens until their sum exceeds p: a token is dropped if the sum before it does
//              min_p   tokens with at least min_p times the likeliest one's probability
// Draw         number `position` of the stream `key` (loom::uniform_at): the same text for the same seed.
// Errors       Error if a logit is NaN or +infinity, or if all are -infinity (masked): the model has diverged.
//              ConfigError if the penalty causes that.
// Threads      any.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace loom::models {

struct SamplingOptions {
  double temperature = 0.0;         // 0: greedy
  std::int64_t top_k = 0;           // 0: all
  double top_p = 1.0;               // 1: all
  double min_p = 0.0;               // 0: all
  double repetition_penalty = 1.0;  // 1: none
};

// `row`: the tokens so far, for the penalty.
std::int32_t choose_token(std::span<const float> logits, const SamplingOptions& options, std::uint64_t key,
                          std::uint64_t position, std::span<const std::int32_t> row = {});

// The distribution of a draw: a probability for each token, 0 for dropped ones. Greedy: 1 for one token.
std::vector<double> next_token_probabilities(std::span<const float> logits, const SamplingOptions& options,
                                             std::span<const std::int32_t> row = {});

// log(softmax(logits)); then the penalty on these, which are never positive (beam search, as in transformers).
std::vector<double> log_probabilities(std::span<const float> logits, double repetition_penalty = 1.0,
                                      std::span<const std::int32_t> row = {});

}  // namespace loom::models
