// The handlers by kind. Private to engine/text.
#pragma once

#include <memory>
#include <string_view>

#include "engine/text/preprocess/handler.h"

namespace loom::data {

// The parts of handlers.
struct HandlerParts {
  const HandlerOptions& options;
  const Tokenizer& tokenizer;
  const SpecialIds& ids;
};

// GeneralPretrainHandler, AlpacaPretrainHandler, SharegptPretrainHandler.
std::unique_ptr<Handler> make_general_pretrain(const HandlerParts& parts);
std::unique_ptr<Handler> make_alpaca_pretrain(const HandlerParts& parts);
std::unique_ptr<Handler> make_sharegpt_pretrain(const HandlerParts& parts);

// Handlers with a template: ...InstructionHandler, ...PairwiseHandler, PPO..., R1....
std::unique_ptr<Handler> make_alpaca_instruction(const HandlerParts& parts);
std::unique_ptr<Handler> make_sharegpt_instruction(const HandlerParts& parts);
std::unique_ptr<Handler> make_openai_instruction(const HandlerParts& parts);
std::unique_ptr<Handler> make_alpaca_pairs(const HandlerParts& parts);
std::unique_ptr<Handler> make_sharegpt_pairs(const HandlerParts& parts);
std::unique_ptr<Handler> make_alpaca_prompts(const HandlerParts& parts);
std::unique_ptr<Handler> make_alpaca_r1(const HandlerParts& parts);
std::unique_ptr<Handler> make_sharegpt_r1(const HandlerParts& parts);

std::unique_ptr<Handler> make_process_reward(const HandlerParts& parts);

// The end of a document, for --append-eod; ConfigError if the tokenizer has none.
TokenId eod_of(const SpecialIds& ids);
// A warning for --append-eod if it has no effect.
void warn_of_unused_eod(const HandlerOptions& options);

}  // namespace loom::data
