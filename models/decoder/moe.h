// SparseMoeBlock: the module that replaces the MLP in a sparse layer. Private to models.
//
// Paths    gate.weight [E,H]: the router. experts.gate_up_proj [E,2I,H], experts.down_proj [E,H,I]: all experts of the
//          layer, row e being expert e; so sharding the parameters by rows shards by experts.
//          Qwen2-MoE: shared_expert, an MLP of every token, and shared_expert_gate.weight [1,H]. DeepSeek-V3:
//          shared_experts, one MLP of the size of all of them, and the buffer gate.e_score_correction_bias fp32 [E],
//          which is added to the scores for the choice alone, and is not trained.
// Call     block(hidden [B,S,H]) -> LayerResult: with losses of the router also the loads [B,2,E], of each sequence the
//          sums of the probabilities and the tokens of each expert, and with a z-loss that of each sequence, [B,1].
//          gate(hidden [T,H]) -> weights [T,k], experts int64 [T,k], scores [T,E], and with Megatron's losses the
//          logits [T,E].
//          experts(hidden [T,H], experts [T,k], weights [T,k]) -> [T,H]: a module with its own forward, which can
//          be wrapped separately from its block.
// Routing  as in engine/tensor/ops/routing.h. The shared expert adds sigmoid(shared_expert_gate(x)) * shared_expert(x);
//          DeepSeek-V3's have no gate.
// Classes  as in transformers: Qwen3MoeSparseMoeBlock, Qwen3MoeTopKRouter, Qwen3MoeExperts, and so for Mixtral and
//          Qwen2Moe; the shared expert is a Qwen2MoeMLP. DeepseekV3MoE, DeepseekV3TopkRouter, DeepseekV3NaiveMoe,
//          DeepseekV3MLP.
#pragma once

#include <memory>
#include <vector>

#include "engine/dist/context_attention.h"
#include "engine/dist/tensor_slot.h"
#include "engine/nn/module.h"
#include "models/decoder/decoder_config.h"
#include "models/decoder/decoder_parts.h"
#include "models/hub/expert_options.h"

namespace loom::models {

// Precondition: config.moe.
std::shared_ptr<nn::Module> make_moe_block(const DecoderConfig& config);

// The result of a layer, with what it and the layers before it say of their routers.
LayerResult with_losses_of(const DecoderConfig& config, const LayerResult& before, LayerResult result);

// The ranks that have other tokens of the same sequences.
struct SequenceRanks {
  const dist::Context* context = nullptr;  // null: sequences are whole
  const dist::TensorSlot& tensor;          // of the model
};

// The terms of the routers' loss (engine/nn/router_loss.h), of the result of all layers.
std::vector<Tensor> router_losses(const DecoderConfig& config, const ExpertOptions& options, const LayerResult& result,
                                  const SequenceRanks& others);

}  // namespace loom::models
