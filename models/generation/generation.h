// Text continuation by any module from ids to logits, one token at a time. The whole prefix is recomputed for every
// token; a decoder continues texts faster through a GenerationSession (session.h).
//
// Dropout  is off during the call.
// Threads  the rank's host thread. With a sharded model every rank calls at the same time, for as many tokens. Ranks
//          that share sequences or matrices compute one sequence together.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/nn/module.h"

namespace loom::models {

// The next token from the logits [V] of the last position; `position` counts tokens from the beginning of the prompt.
using Sampler = std::function<std::int32_t(std::span<const float> logits, std::int64_t position)>;

struct GenerationOptions {
  std::int64_t max_new_tokens = 0;
  std::int64_t max_positions = 0;           // the longest sequence that the model accepts
  std::vector<std::int64_t> end_token_ids;  // generation ends after one of these
};

enum class StopReason : std::uint8_t { kMaxNewTokens, kEndToken, kPositionsFull, kStopText };

struct Generation {
  std::vector<std::int32_t> tokens;  // the prompt and the new tokens
  StopReason reason = StopReason::kMaxNewTokens;
  std::string message;  // one line for the user, e.g. "stopped after 112 of 200 tokens: max_position_embeddings is 128"
};

// The message of a text with `made` of `wanted` tokens. `limit`: "max_position_embeddings is 128".
std::string stop_message(StopReason reason, std::int64_t made, std::int64_t wanted, std::string_view limit);

// Throws ConfigError for an empty prompt and for one longer than max_positions.
void check_prompt(std::span<const std::int32_t> prompt, const GenerationOptions& options);

// `model` maps token ids [1,S] to logits [1,S,V]; nothing is recorded on the tape. `on_token` sees each new token.
// Throws as check_prompt() does.
Generation generate(nn::Module& model, std::span<const std::int32_t> prompt, const GenerationOptions& options,
                    const Sampler& sampler, const std::function<void(std::int32_t)>& on_token = {});

}  // namespace loom::models
