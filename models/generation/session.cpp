#include "models/generation/session.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/rng.h"
#include "models/generation/beam_search.h"
#include "models/generation/session_reader.h"

namespace loom::models {

void check_prompt(std::span<const std::int32_t> prompt, const DecoderConfig& config,
                  const std::optional<std::int64_t>& max_length, std::string_view shown) {
  const std::int64_t size = std::ssize(prompt), most = longest_sequence(config);
  if (prompt.empty()) config_error("{} is empty; give at least one token", shown);
  if (size > most) {
    config_error("{} has {} tokens, but the model's {}; use a shorter prompt", shown, size,
                 longest_sequence_text(config));
  }
  if (max_length && size >= *max_length) {
    config_error(
        "{} has {} tokens, and the whole text may have {} (max_length); give a larger one, or a shorter prompt", shown,
        size, *max_length);
  }
  for (std::int64_t i = 0; i < size; ++i) {
    const std::int32_t token = prompt[static_cast<std::size_t>(i)];
    if (token >= 0 && token < config.vocab_size) continue;
    config_error("token {} of {} is {}, but the model's vocab_size is {}; use the model's own tokenizer", i, shown,
                 token, config.vocab_size);
  }
}

struct GenerationSession::Reader : SessionReader {
  using SessionReader::SessionReader;
};

namespace {

// The rows of one call, token by token.
class Batch {
 public:
  Batch(SessionReader& reader, const DecoderConfig& config, const std::vector<Row>& prompts,
        const DecodingOptions& options, const GenerationEvents& events)
      : reader_(reader),
        config_(config),
        options_(options),
        events_(events),
        key_(stream_key(options.seed, "generate")),
        rows_(prompts),
        open_(prompts.size(), true) {
    for (const Row& prompt : prompts) {
      const std::int64_t asked = options.max_length
                                     ? std::min(options.max_new_tokens, *options.max_length - std::ssize(prompt))
                                     : options.max_new_tokens;
      made_.push_back({prompt, asked > 0 ? StopReason::kPositionsFull : StopReason::kMaxNewTokens, ""});
      wanted_.push_back(asked);
    }
    for (std::size_t b = 0; b < rows_.size(); ++b) open_[b] = has_room(b);
  }

  std::vector<Generation> run() {
    const std::int64_t known = reader_.begin(rows_, options_.inputs);
    std::vector<std::span<const std::int32_t>> unread;
    for (const Row& row : rows_) unread.push_back(std::span(row).subspan(static_cast<std::size_t>(known)));
    while (!all_ended()) {
      const auto& logits = options_.use_cache ? reader_.read(unread, static_cast<bool>(events_.all_ranks_ended))
                                              : reader_.read_whole(rows_);
      for (std::size_t b = 0; b < rows_.size(); ++b) {
        if (open_[b]) take(b, logits[b]);
      }
      for (std::size_t b = 0; b < rows_.size(); ++b) {
        unread[b] = open_[b] ? std::span<const std::int32_t>(rows_[b]).last(1) : std::span<const std::int32_t>();
      }
    }
    for (std::size_t b = 0; b < rows_.size(); ++b) {
      made_[b].message = stop_message(made_[b].reason, new_tokens(b), wanted_[b], longest_sequence_text(config_));
      made_[b].tokens = rows_[b];
    }
    return made_;
  }

 private:
  std::int64_t new_tokens(std::size_t b) const { return std::ssize(rows_[b]) - std::ssize(made_[b].tokens); }

  // Whether a token may be added, and why not.
  bool has_room(std::size_t b) {
    made_[b].reason = new_tokens(b) >= wanted_[b] ? StopReason::kMaxNewTokens : StopReason::kPositionsFull;
    return new_tokens(b) < wanted_[b] && std::ssize(rows_[b]) < longest_sequence(config_);
  }

  bool all_ended() {
    const bool ended = std::ranges::none_of(open_, [](bool open) { return open; });
    return events_.all_ranks_ended ? events_.all_ranks_ended(ended) : ended;
  }

  void take(std::size_t b, std::span<const float> logits) {
    Row& row = rows_[b];
    const std::int32_t token = choose_token(logits, options_.sampling, key_, row.size(), row);
    row.push_back(token);
    if (events_.on_token) events_.on_token(b, token);
    open_[b] = has_room(b);
    const std::span<const std::int32_t> made = std::span(row).last(static_cast<std::size_t>(new_tokens(b)));
    if (std::ranges::find(options_.end_token_ids, token) != options_.end_token_ids.end()) {
      made_[b].reason = StopReason::kEndToken;
      open_[b] = false;
    } else if (events_.stops && events_.stops(b, made)) {
      made_[b].reason = StopReason::kStopText;
      open_[b] = false;
    }
  }

  SessionReader& reader_;
  const DecoderConfig& config_;
  const DecodingOptions& options_;
  const GenerationEvents& events_;
  const std::uint64_t key_;
  std::vector<Row> rows_;
  std::vector<bool> open_;
  std::vector<Generation> made_;  // tokens: the prompt until run() ends
  std::vector<std::int64_t> wanted_;
};

// Empties the cache where a call throws.
template <class Run>
auto or_clear(SessionReader& reader, Run&& run) {
  try {
    return run();
  } catch (...) {
    reader.clear();
    throw;
  }
}

}  // namespace

GenerationSession::GenerationSession(nn::Module& model, const DecoderConfig& config)
    : model_(model), config_(config), reader_(std::make_unique<Reader>(model_, config_)) {}
GenerationSession::~GenerationSession() = default;

std::vector<Generation> GenerationSession::generate(const std::vector<Tokens>& prompts, const DecodingOptions& options,
                                                    const GenerationEvents& events) {
  if (prompts.empty()) config_error("no prompt is given; give at least one");
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    check_prompt(prompts[i], config_, options.max_length,
                 prompts.size() == 1 ? "the prompt" : fmt::format("prompt {}", i + 1));
  }
  if (prompts.size() > 1 && !options.use_cache && !options.inputs.empty()) {
    config_error("{} prompts have pictures and no cache; use the cache, or give one prompt at a time", prompts.size());
  }
  return or_clear(*reader_, [&] { return Batch(*reader_, config_, prompts, options, events).run(); });
}

BeamResult GenerationSession::beam_search(const Tokens& prompt, const BeamOptions& options) {
  check_prompt(prompt, config_, options.max_length);
  if (options.beams < 1) config_error("a search has {} beams; use at least 1", options.beams);
  return or_clear(*reader_, [&] { return models::beam_search(*reader_, config_, prompt, options); });
}

std::int64_t GenerationSession::cached_tokens() const {
  const KvCache* cache = reader_->cache();
  std::int64_t tokens = 0;
  for (std::int64_t b = 0; cache != nullptr && b < cache->batch(); ++b) tokens += cache->length(b);
  return tokens;
}

std::int64_t GenerationSession::cache_bytes() const {
  return reader_->cache() == nullptr ? 0 : reader_->cache()->nbytes();
}

void GenerationSession::clear() { reader_->clear(); }

}  // namespace loom::models
