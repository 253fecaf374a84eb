// ExpertOptions: how the experts of a model are trained, in the words of Megatron's flags.
//
// Losses    are added in training, beside the loss of the tokens: of every layer with experts, Megatron's
//           load-balancing loss (engine/tensor/ops/routing.h) and z-loss. They are of a micro-batch, of all ranks that
//           share its sequences, and weigh as much as it does.
// Capacity  ceil(tokens * k / experts * factor) tokens of an expert, of each rank's micro-batch; the choices beyond it
//           are dropped: the token passes by that expert.
// Bias      of a router that corrects its choices (DeepSeek-V3): after each step it moves by the rate, down for an
//           expert with more than the mean of the tokens of all ranks, up for one with fewer. It has no gradient.
// Source    Megatron-LM, megatron/core/transformer/moe.
#pragma once

#include <cstdint>

namespace loom::models {

enum class LoadBalancing : std::uint8_t {
  kNone,
  kAuxLoss,     // over the tokens of the micro-batch
  kSeqAuxLoss,  // of each sequence, averaged
};
// Of an expert with too many, the tokens that stay.
enum class TokenDropPolicy : std::uint8_t {
  kProbs,     // with the largest weights
  kPosition,  // the first
};

struct ExpertOptions {
  LoadBalancing load_balancing = LoadBalancing::kAuxLoss;
  double aux_loss_coeff = 0;
  double z_loss_coeff = 0;
  double capacity_factor = 0;                 // 0: no limit
  bool pad_expert_input_to_capacity = false;  // every expert computes that many rows
  TokenDropPolicy drop_policy = TokenDropPolicy::kProbs;
  bool enable_expert_bias = false;
  double bias_update_rate = 1e-3;

  bool balances() const { return load_balancing != LoadBalancing::kNone && aux_loss_coeff != 0; }
  bool has_losses() const { return balances() || z_loss_coeff != 0; }
  bool operator==(const ExpertOptions&) const = default;
};

}  // namespace loom::models
