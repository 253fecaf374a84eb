// The model that Megatron's shape flags describe, where no configuration is given. Private to engine/cli.
//
// Family      from the flags: Qwen3-MoE (--num-experts), Qwen3 (--qk-layernorm), Qwen2 (--add-qkv-bias) and Llama have
//             RMSNorm, rotary positions, --swiglu and --disable-bias-linear; GPT-2 has Megatron's defaults: LayerNorm,
//             learned positions, GELU and biases. Other combinations are refused.
// Vocabulary  --padded-vocab-size; else --vocab-size, or the entries of --vocab-file, rounded up to a multiple of
//             --make-vocab-size-divisible-by.
// Defaults    Megatron's, as in the rows of engine/job/keys_shape.cpp.
// Errors      ConfigError with every flag that is missing, does not fit, or fits no family.
// Source      Megatron-LM, megatron/training/arguments.py and tokenizer.py; MindSpeed-LLM for scaled rotary positions.
#pragma once

#include "engine/job/job.h"

namespace loom::cli {

// The rows of the embedding that Megatron makes of `size` tokens.
std::int64_t padded_vocabulary(const models::ShapeOptions& shape, std::int64_t size);

// Whether layer i of `layers` has experts, as --moe-layer-freq and --first-k-dense-replace say. ConfigError for a value
// that says it of no layer or of another number of layers.
std::vector<bool> sparse_layers(const models::ShapeOptions& shape, std::int64_t layers);

// Fills in job.model.made_config if there is no configuration and the flags name a model. The other shape flags that no
// one compares with a configuration go to written.without_effect; all of them do in a user's program without one.
void settle_shape(job::Job& job, bool users_program);

// Shards such a model as Megatron runs it by default, where no sharding is given: several ranks, --fp16 or --bf16 get
// sharding_size 1 (every rank has all parameters) and their param_dtype, which a line of written.told says.
void settle_replicas(job::Job& job, bool several_ranks);

}  // namespace loom::cli
