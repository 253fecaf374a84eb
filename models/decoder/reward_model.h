// Reward models: a decoder with a head of one number a token in the place of its output layer, transformers'
// ...ForSequenceClassification with one label.
//
// Call     as the decoder (decoder.h), with its named arguments -> scores [B,S,1]. The score of a text is that of its
//          last token.
// Paths    those of the decoder, and score.weight [1, hidden_size]; no bias. lm_head is gone, and a tie with it.
// Class    type_name() is transformers': Qwen2ForSequenceClassification.
// Weights  of a folder of the decoder (lm_head is read over, the head is drawn) or of a reward model (check_weights of
//          hf_folder.h).
// LoRA     the head is trained whole beside adapters, as peft's task type SEQ_CLS has it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/nn/init.h"
#include "engine/nn/module.h"

namespace loom::models {

inline constexpr std::string_view kRewardHead = "score";
inline constexpr std::string_view kRewardHeadWeight = "score.weight";

// Takes the decoder's parts; `causal` is no longer used. Before sharding. ConfigError for a model that is no decoder
// with an output layer.
std::shared_ptr<nn::Module> make_reward_model(const std::shared_ptr<nn::Module>& causal);

bool is_reward_model(const nn::Module& model);

// First values of the head, by seed, path and global index; nothing for another model, or where the head is in `kept`.
// Precondition: it has bytes.
void draw_reward_head(nn::Module& model, std::uint64_t seed, const nn::KeptValues& kept = {});

// A decoder's config.json as that of its reward model: architectures, id2label and label2id of one label; pad_token_id,
// by which transformers finds the last token of a row, where the file gives none.
std::string reward_config(const std::string& config_json, std::optional<std::int64_t> pad_token_id);

}  // namespace loom::models
