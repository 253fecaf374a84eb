// The activations of a model that move to the host: activation_offload_modules of the file, --swap-attention and
// --smart-swap, built on offload::swap_activations().
//
// Layers   decoder layers are the modules whose class is ...DecoderLayer or GPT2Block, in order of registration.
// Words    of --swap-modules: input_norm (input_layernorm, ln_1), self_attention (self_attn, attn), post_attention_norm
//          (post_attention_layernorm, pre_mlp_layernorm, ln_2), mlp, or a layer's child by its own name.
// Order    after recompute, before sharding; for a model that is not sharded, before its first forward.
// Errors   ConfigError: a model without decoder layers; a word that names no child of a layer; a module inside one that
//          is recomputed, whose saved tensors are not kept; a chosen block that does not exist.
// Threads  the rank's host thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/nn/module.h"
#include "offload/activation_swap.h"
#include "offload/swap_options.h"
#include "sharding/config/fsdp2_config.h"

namespace loom::models {

// The decoder layers of a model, with their paths.
std::vector<offload::SwapBlock> decoder_layers(nn::Module& model);

// --swap-attention: swaps everything that the modules `words` save in every decoder layer but the last.
void swap_attention(nn::Module& model, const std::vector<std::string>& words);
// --swap-attention beside --recompute-num-layers: the MLPs of the first `count` decoder layers are recomputed in
// backward. ConfigError if there are fewer layers.
void recompute_first_mlps(nn::Module& model, std::int64_t count);
// The blocks of --smart-swap: the outermost modules of `wrapped` (paths of sub_modules_to_wrap), or the decoder layers
// if that is empty.
std::vector<offload::SwapBlock> smart_swap_blocks(nn::Module& model, const std::vector<std::string>& wrapped);

// All swap of a model: the modules at `offloaded` swap their first arguments, `options` the rest. `wrapped`: see above.
struct SwapRequest {
  std::vector<std::string> offloaded = {};
  bool pin_memory = false;  // for `offloaded`; the flags' swap is always pinned
  std::vector<std::string> wrapped = {};
  std::vector<sharding::SwappedModule> by_path = {};  // modules that swap everything they save
};
// The blocks that the request swaps, each in its way: for code that sums up the cost of swap.
std::vector<offload::SwapBlock> swapped_blocks(nn::Module& model, const SwapRequest& request,
                                               const offload::SwapOptions& options);
void swap_activations(nn::Module& model, const SwapRequest& request, const offload::SwapOptions& options);

// A part of a custom strategy (fsdp2_mixin.h): modules whose first argument is swapped, in the order of the patterns.
// After set_recompute_modules_to_wrap, before set_fullyshard_modules_to_wrap.
void set_offload_modules_to_wrap(nn::Module& model, const std::vector<std::string>& patterns, bool pin_memory = false);

}  // namespace loom::models
