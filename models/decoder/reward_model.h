// Reward models: a decoder whose output layer is replaced by a head with one number per token, transformers'
// ...ForSequenceClassification with one label.
//
// Call     as the decoder (decoder.h), with its named arguments -> scores [B,S,1]. A text's score is the score of its
//          last token.
// Paths    the decoder's, and score.weight [1, hidden_size]; no bias. lm_head is removed, and a tie with it.
// Class    type_name() is transformers': Qwen2ForSequenceClassification.
// Weights  from a folder of the decoder (lm_head is ignored, the head is drawn by seed, path and global index:
//          new_parameters.h) or of a reward model (check_weights of hf_folder.h).
// LoRA     the head is trained whole beside adapters, as in peft's task type SEQ_CLS.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/nn/module.h"

namespace loom::models {

inline constexpr std::string_view kRewardHead = "score";
inline constexpr std::string_view kRewardHeadWeight = "score.weight";

// Takes over the decoder's parts; `causal` is no longer used. Before sharding. ConfigError for a model that is not a
// decoder with an output layer.
std::shared_ptr<nn::Module> make_reward_model(const std::shared_ptr<nn::Module>& causal);

bool is_reward_model(const nn::Module& model);

// A decoder's config.json converted to its reward model's: architectures, id2label and label2id of one label, and
// pad_token_id, by which transformers finds the last token of a row, if the file has none.
std::string reward_config(const std::string& config_json, std::optional<std::int64_t> pad_token_id);

}  // namespace loom::models
