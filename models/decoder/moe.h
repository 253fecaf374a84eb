// Qwen3MoeSparseMoeBlock: in a sparse layer the place of the MLP. Private to models.
//
// Paths    gate.weight [E,H]: the router. experts.gate_up_proj [E,2I,H], experts.down_proj [E,H,I]: all experts of the
//          layer, row e being expert e; so whoever shards the parameters by rows shards by experts.
// Call     block(hidden [B,S,H]) -> [B,S,H]. gate(hidden [T,H]) -> weights [T,k], experts int64 [T,k].
//          experts(hidden [T,H], experts [T,k], weights [T,k]) -> [T,H]: a module with a forward of its own, which can
//          be wrapped apart from its block.
// Routing  as in engine/tensor/ops/moe.h.
// Classes  as in transformers: Qwen3MoeSparseMoeBlock, Qwen3MoeTopKRouter, Qwen3MoeExperts.
#pragma once

#include <memory>

#include "engine/nn/module.h"
#include "models/decoder/decoder_config.h"

namespace loom::models {

// Precondition: config.moe.
std::shared_ptr<nn::Module> make_moe_block(const DecoderConfig& config);

}  // namespace loom::models
