#include "engine/tensor/ops/routing.h"

#include <cmath>
#include <vector>

#include "engine/core/shape_text.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/routing.h"
#include "engine/kernels/simd.h"
#include "engine/tensor/ops/blocks.h"
#include "engine/tensor/ops/general.h"
#include "engine/tensor/ops/support.h"

namespace loom::ops {
namespace {

void check_router(const Tensor& logits, const RouterOptions& o, const Tensor& bias) {
  check_model(logits.shape().ndim() == 2 && o.k >= 1 && o.k <= logits.shape()[1],
              "route: {} of {}; logits are [tokens, experts], and each token has 1 to all of the experts", o.k,
              logits.shape());
  const std::int64_t experts = logits.shape()[1];
  check_model(!bias.defined() || bias.shape() == Shape{experts},
              "route: a bias {} for {} experts; one for each is needed", bias.defined() ? to_string(bias.shape()) : "",
              experts);
  if (o.groups == 1) return;
  check_model(o.groups >= 1 && experts % o.groups == 0, "route: {} experts in {} groups; the groups have equal sizes",
              experts, o.groups);
  const std::int64_t size = experts / o.groups;
  check_model(o.best_groups >= 1 && o.best_groups <= o.groups && o.best_groups * size >= o.k,
              "route: {} experts of the best {} of {} groups of {}; so many groups have to hold them", o.k,
              o.best_groups, o.groups, size);
  check_model(o.best_in_group >= 1 && o.best_in_group <= size,
              "route: a group's score is of its {} best experts, and it has {}; choose 1 to all", o.best_in_group,
              size);
}

Tensor scores_of(const Tensor& logits, RouterScore score) {
  if (score == RouterScore::kSoftmax) return softmax_in_statistics(logits);
  const Tensor in_statistics = cast(logits, accumulation_dtype(logits.dtype()));
  return score == RouterScore::kSigmoid ? sigmoid(in_statistics) : in_statistics;
}

Tensor chosen_experts(const Tensor& scores, const RouterOptions& o, const Tensor& bias) {
  const kernels::ExpertChoice op{scores.shape()[0], scores.shape()[1], o.k, o.groups, o.best_groups, o.best_in_group};
  const Tensor added = bias.defined() ? cast(bias.detach(), scores.dtype()) : bias;
  Tensor choices = Tensor::empty({op.tokens, op.k}, DType::kI64);
  launch("top_k", pass_cost(static_cast<double>(scores.numel()), {scores}, {choices}), [&] {
    kernels::choose_experts(scores.dtype(), op, scores.raw(), raw_or_null(added), choices.data<std::int64_t>());
  });
  return choices;
}

kernels::WeightNorm norm_of(const RouterOptions& options) {
  if (options.score == RouterScore::kSoftmaxOfChosen) return kernels::WeightNorm::kSoftmax;
  return options.renormalize ? kernels::WeightNorm::kSum : kernels::WeightNorm::kNone;
}

Tensor routing_weights(const Tensor& scores, const Tensor& choices, DType dtype, const RouterOptions& options) {
  const kernels::RoutingWeights op{scores.shape()[0], scores.shape()[1], choices.shape()[1], norm_of(options),
                                   options.scale};
  Tensor weights = Tensor::empty(choices.shape(), dtype);
  launch("routing_weights", pass_cost(2.0 * static_cast<double>(weights.numel()), {weights, choices}, {weights}), [&] {
    kernels::routing_weights_forward(dtype, op, scores.raw(), choices.data<std::int64_t>(), weights.raw());
  });
  autograd::record(
      "routing_weights", {scores}, {scores, choices}, {weights},
      [op, dtype](Saved saved, const Grads& grads, const Needs&) -> Grads {
        const Tensor &scores = saved[0], &choices = saved[1], &dweights = grads[0];
        Tensor dscores = Tensor::empty(scores.shape(), scores.dtype());
        const Cost cost = pass_cost(4.0 * static_cast<double>(dweights.numel()), {dweights, choices}, {dscores});
        launch("routing_weights_grad", cost, [&] {
          kernels::routing_weights_backward(dtype, op, scores.raw(), choices.data<std::int64_t>(), dweights.raw(),
                                            dscores.raw());
        });
        return {dscores};
      });
  return weights;
}

// 1 where a choice is kept, else 0.
Tensor kept_choices(const Tensor& experts, DType dtype) {
  Tensor kept = Tensor::empty(experts.shape(), dtype);
  launch("kept_choices", pass_cost(0, {experts}, {kept}), [&] {
    kernels::visit_float_dtype("kept_choices", dtype, [&]<class T>() {
      for (std::int64_t i = 0; i < experts.numel(); ++i) {
        kept.data<T>()[i] = kernels::simd::from_double<T>(experts.data<std::int64_t>()[i] >= 0 ? 1.0 : 0.0);
      }
    });
  });
  return kept;
}

// 1 where a token is counted, else 0: [T, 1].
Tensor counted_tokens(const Tensor& counted, DType dtype) {
  const std::vector<std::int32_t> values = counted.to_vector<std::int32_t>();
  std::vector<double> factors;
  for (const std::int32_t value : values) factors.push_back(value != 0 ? 1 : 0);
  return Tensor::from(factors, {counted.numel(), 1}, dtype);
}

void check_parts(std::string_view op, const Tensor& x, const BalanceOptions& options) {
  check_model(x.shape().ndim() == 2 && options.sequences >= 1 && x.shape()[0] % options.sequences == 0,
              "{}: {} in {} sequences; [tokens, ...] with equally many tokens of each is needed", op, x.shape(),
              options.sequences);
  const Tensor& counted = options.counted;
  check_model(!counted.defined() || (counted.dtype() == DType::kI32 && counted.numel() == x.shape()[0]),
              "{}: {} tokens, and the mask is not int32 with one number for each", op, x.shape()[0]);
}

}  // namespace

Routing route(const Tensor& logits, const RouterOptions& options, const Tensor& bias) {
  check_router(logits, options, bias);
  const Tensor scores = scores_of(logits, options.score);
  const Tensor choices = chosen_experts(scores, options, bias);
  return {routing_weights(scores, choices, logits.dtype(), options), choices, scores};
}

Tensor balance_probabilities(const Tensor& logits, RouterScore score) {
  if (score != RouterScore::kSigmoid) return softmax_in_statistics(logits);
  const Tensor scores = scores_of(logits, score);
  return div(scores, add_scalar(sum(scores, -1, /*keep_dim=*/true), 1e-20));
}

Tensor probability_sums(const Tensor& probabilities, const BalanceOptions& options) {
  check_parts("probability_sums", probabilities, options);
  const Shape& s = probabilities.shape();
  const Tensor& counted = options.counted;
  const Tensor masked =
      counted.defined() ? mul(probabilities, counted_tokens(counted, probabilities.dtype())) : probabilities;
  return sum(reshape(masked, {options.sequences, s[0] / options.sequences, s[1]}), 1);
}

Tensor count_choices(const Tensor& experts, std::int64_t num_experts, DType dtype, const BalanceOptions& options) {
  check_parts("count_choices", experts, options);
  const std::int64_t tokens = experts.shape()[0] / options.sequences, k = experts.shape()[1];
  Tensor counts = Tensor::empty({options.sequences, num_experts}, dtype);
  launch("count_choices", pass_cost(0, {experts}, {counts}), [&] {
    std::vector<std::int64_t> of_sequence(static_cast<std::size_t>(num_experts));
    const auto* counted = static_cast<const std::int32_t*>(raw_or_null(options.counted));
    kernels::visit_float_dtype("count_choices", dtype, [&]<class T>() {
      for (std::int64_t s = 0; s < options.sequences; ++s) {
        kernels::count_choices(tokens, k, num_experts, experts.data<std::int64_t>() + s * tokens * k,
                               counted == nullptr ? nullptr : counted + s * tokens, of_sequence.data());
        for (std::int64_t e = 0; e < num_experts; ++e) {
          counts.data<T>()[s * num_experts + e] =
              kernels::simd::from_double<T>(static_cast<double>(of_sequence[static_cast<std::size_t>(e)]));
        }
      }
    });
  });
  return counts;
}

Tensor balance_loss(const Tensor& probability_sums, const Tensor& counts, double factor) {
  check_same("balance_loss", probability_sums, counts);
  return scale(sum(mul(probability_sums, counts)), factor);
}

Tensor router_z_loss(const Tensor& logits, double coefficient) {
  const Tensor log_sums = log_sum_exp(logits);
  return scale(mean(mul(log_sums, log_sums)), coefficient);
}

void update_expert_bias(const Tensor& bias, const Tensor& counts, double rate) {
  check_model(bias.numel() == counts.numel(), "update_expert_bias: {} for the counts {}; one for each expert is needed",
              bias.shape(), counts.shape());
  launch("update_expert_bias", pass_cost(3.0 * static_cast<double>(bias.numel()), {bias, counts}, {bias}), [&] {
    const std::vector<double> n = kernel_values(counts);
    double total = 0;
    for (const double count : n) total += count;
    const double mean = total / static_cast<double>(n.size());
    kernels::visit_float_dtype("update_expert_bias", bias.dtype(), [&]<class T>() {
      for (std::size_t e = 0; e < n.size(); ++e) {
        const double step = n[e] < mean ? rate : n[e] > mean ? -rate : 0;
        bias.data<T>()[e] = kernels::simd::from_double<T>(kernels::simd::to_double(bias.data<T>()[e]) + step);
      }
    });
  });
}

std::int64_t expert_capacity(std::int64_t tokens, std::int64_t k, std::int64_t experts, double factor) {
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(tokens * k) / static_cast<double>(experts) * factor));
}

Routing drop_beyond_capacity(const Routing& routing, std::int64_t capacity, DropPolicy policy) {
  check_model(capacity >= 1, "drop_beyond_capacity: {}; an expert takes at least one token", capacity);
  const Shape& s = routing.experts.shape();
  const kernels::CapacityLimit op{s[0], s[1], routing.scores.shape()[1], capacity, policy == DropPolicy::kProbability};
  const DType dtype = routing.weights.dtype();
  Tensor kept = Tensor::empty(s, DType::kI64);
  launch("drop_beyond_capacity", pass_cost(0, {routing.experts, routing.weights}, {kept}), [&] {
    kernels::drop_beyond_capacity(dtype, op, routing.experts.data<std::int64_t>(), routing.weights.raw(),
                                  kept.data<std::int64_t>());
  });
  return {mul(routing.weights, kept_choices(kept, dtype)), kept, routing.scores};
}

}  // namespace loom::ops
