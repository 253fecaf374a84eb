// The model that Megatron's shape flags describe, where no configuration is given. Private to engine/cli.
//
// Family      from the flags: Qwen3 (--qk-layernorm), Qwen2 (--add-qkv-bias) and Llama have RMSNorm, rotary positions,
//             --swiglu and --disable-bias-linear; GPT-2 has Megatron's defaults: LayerNorm, learned positions, GELU and
//             biases. Other combinations are refused.
// Vocabulary  --padded-vocab-size; else --vocab-size, or the entries of --vocab-file, rounded up to a multiple of
//             --make-vocab-size-divisible-by (128).
// Defaults    Megatron's: 4 * hidden-size for --ffn-hidden-size (8/3, in multiples of 64, with --swiglu), --rotary-base
//             10000, --norm-epsilon 1e-5, dropout 0.1, tied embeddings.
// Errors      ConfigError with every flag that is missing, out of range, or fits no family.
// Source      Megatron-LM, megatron/training/arguments.py and tokenizer.py.
#pragma once

#include "engine/job/job.h"

namespace loom::cli {

// Fills in job.model.shape if no model is given and shape flags are. The flags that it reads move from
// written.foreign to written.shape_flags.
void settle_shape(job::Job& job);

}  // namespace loom::cli
