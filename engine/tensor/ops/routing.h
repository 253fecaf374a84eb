// Routers of mixture-of-experts layers: the choice of experts, the losses that balance their loads, the correction
// bias, and the capacity of an expert.
//
// Letters  T tokens, E experts, k experts a token, a coefficient.
// dtypes   statistics: fp32, fp64 for fp64. Indices are int64.
// Ties     of equal scores the expert of lowest index is chosen.
// Losses   all of them are c * sum_e n_e * sum_t p_te with n_e the tokens that chose expert e, p the probabilities, and
//          the factor c. n has no gradient.
//            Megatron aux       c = a E / (k T^2), all tokens of a layer
//            Megatron sequence  c = a E / (k S^2 B), sums within each of B sequences of S tokens
//            Megatron global    c = a E / (k T'^2), n over the T' tokens of all ranks; the ranks' losses add up
//            Hugging Face       c = a E / T^2, over the tokens of all layers together that are not padding
//          So Hugging Face's value is k times Megatron's. z-loss: a * mean_t log(sum_e exp(logit_te))^2.
// Places   as in ops.h, and so are errors.
// Source   megatron-core transformer/moe/moe_utils.py; transformers modeling_deepseek_v3.py, modeling_mixtral.py.
#pragma once

#include "engine/tensor/tensor.h"

namespace loom::ops {

enum class RouterScore : std::uint8_t {
  kSoftmax,          // over all experts
  kSoftmaxOfChosen,  // the largest logits are chosen, and the weights are their softmax
  kSigmoid,          // of each logit
};

struct RouterOptions {
  std::int64_t k = 1;
  RouterScore score = RouterScore::kSoftmax;
  bool renormalize = false;  // a token's weights are divided by their sum + 1e-20
  double scale = 1;          // of the weights, last
  // Above 1: so many groups of neighbouring experts. The experts are chosen from the `best_groups` groups of largest
  // score, the sum of a group's `best_in_group` largest scores.
  std::int64_t groups = 1;
  std::int64_t best_groups = 1;
  std::int64_t best_in_group = 1;
};

struct Routing {
  Tensor weights;  // [T, k] in the dtype of the logits, in order of choice; carries the gradient
  Tensor experts;  // [T, k], largest score first
  Tensor scores;   // [T, E] in statistics, on the tape
};
// `logits` [T, E]. `bias` [E] in statistics is added to the scores for the choice, not for the weights.
Routing route(const Tensor& logits, const RouterOptions& options, const Tensor& bias = {});

// --- Losses

// The p of a loss, [T, E] in statistics: the softmax, or sigmoids divided by their sum over the experts + 1e-20.
Tensor balance_probabilities(const Tensor& logits, RouterScore score);

// Sums over tokens, one row for each of `sequences` equal parts of them. `counted` int32 [T]: 0 leaves a token out.
struct BalanceOptions {
  std::int64_t sequences = 1;
  Tensor counted = {};
};
// sum_t p_te: [sequences, E].
Tensor probability_sums(const Tensor& probabilities, const BalanceOptions& options = {});
// n_e in `dtype`: [sequences, E].
Tensor count_choices(const Tensor& experts, std::int64_t num_experts, DType dtype, const BalanceOptions& options = {});
// factor * sum(probability_sums * counts).
Tensor balance_loss(const Tensor& probability_sums, const Tensor& counts, double factor);

Tensor router_z_loss(const Tensor& logits, double coefficient);

// bias [E] += rate * sign(mean of counts - count), in place, unrecorded: an expert at the mean keeps its bias.
void update_expert_bias(const Tensor& bias, const Tensor& counts, double rate);

// --- Capacity

// ceil(T * k / E * factor).
std::int64_t expert_capacity(std::int64_t tokens, std::int64_t k, std::int64_t experts, double factor);

enum class DropPolicy : std::uint8_t {
  kProbability,  // the tokens of largest weight stay, of equal ones the first
  kPosition,     // the first tokens stay
};
// The routing whose choices beyond an expert's capacity are -1, with weight 0. Other weights stay as they are.
Routing drop_beyond_capacity(const Routing& routing, std::int64_t capacity, DropPolicy policy);

}  // namespace loom::ops
