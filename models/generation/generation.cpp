#include "models/generation/generation.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/tensor/autograd.h"
#include "models/generation/evaluating.h"

namespace loom::models {
namespace {

std::vector<float> last_logits(nn::Module& model, std::span<const std::int32_t> tokens) {
  const auto length = static_cast<std::int64_t>(tokens.size());
  const Tensor ids = Tensor::host({1, length}, DType::kI32, "token ids");
  std::copy(tokens.begin(), tokens.end(), ids.data<std::int32_t>());
  const Tensor logits = model(ids);
  return logits.view({length, logits.shape()[-1]}).rows(length - 1, 1).to_vector<float>();
}

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
  Generation result{{prompt.begin(), prompt.end()}, StopReason::kMaxNewTokens, ""};
  const auto& ends = options.end_token_ids;
  std::int64_t made = 0;
  while (made < options.max_new_tokens) {
    const auto position = static_cast<std::int64_t>(result.tokens.size());
    if (position == options.max_positions) {
      result.reason = StopReason::kPositionsFull;
      break;
    }
    const std::int32_t token = sampler(last_logits(model, result.tokens), position);
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
