// GenerationSession: continues texts with a decoder and a cache of keys and values; token ids in, token ids out.
//
//   models::GenerationSession session(*model, config);
//   models::GenerationEvents events;
//   events.on_token = [&](std::size_t, std::int32_t token) { show(token); };
//   models::Generation made = session.generate({prompt}, {.max_new_tokens = 100}, events).front();
//
// Prompts  several at once are one batch of rows of their own lengths: each row gets the same tokens as it does alone,
//          and a row that has ended is left out.
// Draws    every row draws from the stream of (seed, "generate"), at the number of its tokens so far: the same text for
//          the same seed, with a cache or without, in a batch or alone, on any number of ranks.
// Cache    remains with the session. A call with one prompt keeps the common beginning of the prompt and the tokens
//          in the cache, so that a conversation that is rendered again each turn is read once (chat).
// Sharded  every rank calls at the same time. With the same prompts all ranks make the same tokens and end together;
//          with prompts of its own (as many of them, without a cache), a rank that has ended keeps calling
//          the model without tokens until all_ranks_ended returns true.
// Beams    beam_search() takes one prompt; as in transformers, with early_stopping False: the score of a hypothesis is
//          the sum of its log-probabilities / (its new tokens, the end token included) ^ length_penalty.
// Errors   ConfigError before the model runs: an empty prompt, one that leaves no room for a token, a token outside the
//          vocabulary. Error if the model has diverged (sampling.h). A call that throws leaves an empty
//          cache.
// Threads  the rank's host thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/nn/module.h"
#include "models/decoder/decoder_config.h"
#include "models/generation/generation.h"
#include "models/generation/sampling.h"

namespace loom::models {

struct DecodingOptions {
  SamplingOptions sampling{};  // greedy
  std::uint64_t seed = 1234;
  std::int64_t max_new_tokens = 128;          // per row
  std::optional<std::int64_t> max_length{};   // per row, prompt included
  std::vector<std::int32_t> end_token_ids{};  // a row ends with one of these, which stays in its tokens
  bool use_cache = true;                      // false: all tokens are read again for each
  // What the model is called with beside the tokens, by name: pictures, of all prompts in turn (models/qwen_vl). With
  // several prompts they need the cache.
  nn::ValueDict inputs{};
};

struct BeamOptions {
  std::int64_t beams = 4;
  double length_penalty = 1.0;
  double repetition_penalty = 1.0;
  std::int64_t max_new_tokens = 128;
  std::optional<std::int64_t> max_length{};
  std::vector<std::int32_t> end_token_ids{};
};

struct GenerationEvents {
  // Called for each new token of a row, in order of rows within a step.
  std::function<void(std::size_t row, std::int32_t token)> on_token;
  // Called after each token of a row: true ends it (stop words). `made` are the new tokens.
  std::function<bool(std::size_t row, std::span<const std::int32_t> made)> stops;
  // Collective over the ranks of a sharded model whose prompts differ: whether all have ended.
  std::function<bool(bool this_rank_ended)> all_ranks_ended;
};

struct BeamResult {
  Generation generation;
  double score = 0;
};

class GenerationSession {
 public:
  // `model` maps token ids to logits like the decoders (kv_cache.h), and outlives the session.
  GenerationSession(nn::Module& model, const DecoderConfig& config);
  ~GenerationSession();
  GenerationSession(const GenerationSession&) = delete;
  GenerationSession& operator=(const GenerationSession&) = delete;

  using Tokens = std::vector<std::int32_t>;
  std::vector<Generation> generate(const std::vector<Tokens>& prompts, const DecodingOptions& options,
                                   const GenerationEvents& events = {});
  BeamResult beam_search(const Tokens& prompt, const BeamOptions& options);

  // Tokens in the cache; 0 at first and after clear().
  std::int64_t cached_tokens() const;
  std::int64_t cache_bytes() const;
  void clear();

 private:
  struct Reader;
  nn::Module& model_;
  const DecoderConfig config_;
  std::unique_ptr<Reader> reader_;
};

// Checks a prompt; ConfigError as in GenerationSession. `prompt` is its name in messages ("prompt 2").
void check_prompt(std::span<const std::int32_t> prompt, const DecoderConfig& config,
                  const std::optional<std::int64_t>& max_length, std::string_view shown = "the prompt");

}  // namespace loom::models
