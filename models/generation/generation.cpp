#include "models/generation/generation.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/rounding.h"
#include "engine/dist/context_attention.h"
#include "engine/tensor/autograd.h"
#include "models/generation/evaluating.h"
#include "models/mixin/fsdp2_mixin.h"
#include "sharding/tensor/share_matrices.h"

namespace loom::models {
namespace {

// The ranks that compute a sequence together. It is longer by a few tokens at its end, which no other one sees, so
// that they share it evenly.
class SharedSequence {
 public:
  explicit SharedSequence(nn::Module& model) {
    nn::Module& sharded = sharded_module(model);
    if (const auto slot = sharded.attachment<dist::ContextSlot>()) context_ = slot->context;
    if (const auto shares = sharded.attachment<sharding::TensorShares>()) tensor_ranks_ = shares->matrices.ranks;
  }

  // The longest sequence, whose padding has to have positions too.
  std::int64_t most(std::int64_t max_positions) const { return max_positions / unit() * unit(); }
  std::int64_t unit() const { return tensor_ranks_ * (context_ ? dist::length_unit(context_->degrees()) : 1); }

  // Of the last of `tokens`, the same on every rank.
  std::vector<float> last_logits(nn::Module& model, std::span<const std::int32_t> tokens) const {
    const auto length = static_cast<std::int64_t>(tokens.size());
    const std::vector<std::int32_t> own = own_positions(round_up(length, unit()));
    const Shape shape{1, std::ssize(own)};
    const Tensor ids = Tensor::host(shape, DType::kI32, "token ids");
    std::transform(own.begin(), own.end(), ids.data<std::int32_t>(),
                   [&](std::int32_t position) { return position < length ? tokens[position] : 0; });
    nn::Args args;
    args.add(ids);
    if (context_) args.named.emplace_back("position_ids", Tensor::from(own, shape));
    const Tensor logits = model.call(std::move(args)).tensor();
    const std::int64_t vocab = logits.shape()[-1];
    const auto last = std::ranges::find(own, static_cast<std::int32_t>(length - 1));
    std::vector<float> row(static_cast<std::size_t>(vocab));
    if (last != own.end()) row = logits.view({std::ssize(own), vocab}).rows(last - own.begin(), 1).to_vector<float>();
    if (context_) {
      sum(context_->ulysses, row);
      sum(context_->ring, row);
    }
    return row;
  }

 private:
  std::vector<std::int32_t> own_positions(std::int64_t tokens) const {
    const std::vector<dist::TokenRange> ranges = context_
                                                     ? dist::token_ranges(tokens, context_->degrees(), context_->rank())
                                                     : std::vector<dist::TokenRange>{{0, tokens}};
    std::vector<std::int32_t> positions;
    for (const dist::TokenRange& range : ranges) {
      for (std::int64_t at = range.begin; at < range.end; ++at) positions.push_back(static_cast<std::int32_t>(at));
    }
    return positions;
  }

  // One rank has the row, the others zeros.
  static void sum(const dist::Channel& ranks, std::vector<float>& row) {
    if (ranks.size() == 1) return;
    ranks.ranks->all_reduce(comm::kHostLane, row.data(), std::ssize(row), DType::kF32, comm::ReduceOp::sum(),
                            "logits of a sample");
  }

  std::shared_ptr<const dist::Context> context_;
  std::int64_t tensor_ranks_ = 1;
};

}  // namespace

std::string stop_message(StopReason reason, std::int64_t made, std::int64_t wanted, std::string_view limit) {
  switch (reason) {
    case StopReason::kPositionsFull:
      return fmt::format("stopped after {} of {} tokens: {}", made, wanted, limit);
    case StopReason::kEndToken:
      return fmt::format("stopped after {} of {} tokens: end token", made, wanted);
    case StopReason::kStopText:
      return fmt::format("stopped after {} of {} tokens: stop word", made, wanted);
    case StopReason::kMaxNewTokens:
      break;
  }
  return fmt::format("made all {} tokens", made);
}

void check_prompt(std::span<const std::int32_t> prompt, const GenerationOptions& options) {
  if (prompt.empty()) config_error("the prompt is empty; give at least one token");
  if (static_cast<std::int64_t>(prompt.size()) > options.max_positions) {
    config_error("the prompt has {} tokens, but the model's max_position_embeddings is {}; use a shorter prompt",
                 prompt.size(), options.max_positions);
  }
}

Generation generate(nn::Module& model, std::span<const std::int32_t> prompt, const GenerationOptions& options,
                    const Sampler& sampler, const std::function<void(std::int32_t)>& on_token) {
  check_prompt(prompt, options);
  const autograd::NoGrad no_grad;
  const Evaluating evaluating(model);
  const SharedSequence sequence(model);
  Generation result{{prompt.begin(), prompt.end()}, StopReason::kMaxNewTokens, ""};
  const auto& ends = options.end_token_ids;
  std::int64_t made = 0;
  while (made < options.max_new_tokens) {
    const auto position = static_cast<std::int64_t>(result.tokens.size());
    if (position >= sequence.most(options.max_positions)) {
      result.reason = StopReason::kPositionsFull;
      break;
    }
    const std::int32_t token = sampler(sequence.last_logits(model, result.tokens), position);
    result.tokens.push_back(token);
    ++made;
    if (on_token) on_token(token);
    if (std::find(ends.begin(), ends.end(), token) != ends.end()) {
      result.reason = StopReason::kEndToken;
      break;
    }
  }
  result.message = stop_message(result.reason, made, options.max_new_tokens,
                                fmt::format("max_position_embeddings is {}", options.max_positions));
  return result;
}

}  // namespace loom::models
