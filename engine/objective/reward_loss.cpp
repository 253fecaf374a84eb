#include "engine/objective/reward_loss.h"

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "engine/nn/functional.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"

namespace loom::objective {
namespace {

// log(1 + exp(-x)) = -log s(x)
double cost_of(double margin) {
  return margin < 0 ? std::log1p(std::exp(margin)) - margin : std::log1p(std::exp(-margin));
}

DType loss_dtype(const Tensor& of) { return of.dtype() == DType::kF64 ? DType::kF64 : DType::kF32; }

std::vector<double> last_scores(const Tensor& scores, std::span<const std::int64_t> lengths) {
  std::vector<double> rewards(lengths.size());
  if (scores.raw() == nullptr) return rewards;
  const std::vector<double> all = scores.to_vector<double>();
  const auto length = static_cast<std::size_t>(scores.shape()[1]);
  for (std::size_t row = 0; row < rewards.size(); ++row) {
    rewards[row] = all[row * length + static_cast<std::size_t>(lengths[row]) - 1];
  }
  return rewards;
}

// What a logit of a token that is no label gets: its share is 0 in the type's own arithmetic.
double least_logit(DType dtype) { return dtype == DType::kF16 ? -6e4 : -1e30; }

Tensor restricted(const Tensor& logits, std::span<const std::int32_t> labels) {
  const std::int64_t vocab = logits.shape()[2];
  std::vector<double> offsets(static_cast<std::size_t>(vocab), least_logit(logits.dtype()));
  for (const std::int32_t label : labels) {
    check_model(0 <= label && label < vocab, "process_reward_loss: label {} of {} tokens", label, vocab);
    offsets[static_cast<std::size_t>(label)] = 0;
  }
  return ops::add(logits, Tensor::from(offsets, {vocab}, logits.dtype()));
}

// The share of labels that are the first of the largest logits.
double accuracy(const Tensor& logits, const Tensor& targets) {
  if (logits.raw() == nullptr || targets.raw() == nullptr) return 0;
  const Shape& shape = logits.shape();
  const Tensor rows = logits.view({shape[0] * shape[1], shape[2]});
  const auto labels = targets.to_vector<std::int32_t>();
  double scored = 0, right = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] == ops::kIgnoreIndex) continue;
    const auto values = rows.rows(static_cast<std::int64_t>(i), 1).to_vector<double>();
    scored += 1;
    right += std::ranges::max_element(values) - values.begin() == labels[i] ? 1 : 0;
  }
  return scored > 0 ? right / scored : 0;
}

void check_scores(const Shape& shape, std::span<const std::int64_t> lengths) {
  const bool fits = shape.ndim() == 3 && shape[2] == 1 && shape[0] > 0 && shape[0] % 2 == 0 &&
                    std::cmp_equal(lengths.size(), shape[0]) &&
                    std::ranges::all_of(lengths, [&](std::int64_t l) { return 1 <= l && l <= shape[1]; });
  check_model(fits,
              "outcome_reward_loss: scores {} and {} lengths; one score for each token of a row is needed, chosen "
              "answers and then as many rejected ones, with a length from 1 to the rows' length for each",
              to_string(shape), lengths.size());
}

struct Outcomes {
  double loss = 0;
  std::vector<double> slopes;  // of the loss by the reward of each row
  std::vector<std::pair<std::string, double>> reports;
};

// Of the rewards of chosen answers and then of rejected ones.
Outcomes compare(const std::vector<double>& rewards) {
  const std::size_t pairs = rewards.size() / 2;
  const auto count = static_cast<double>(pairs);
  double sum = 0, chosen = 0, rejected = 0, right = 0;
  std::vector<double> slopes(rewards.size());
  for (std::size_t i = 0; i < pairs; ++i) {
    const double margin = rewards[i] - rewards[pairs + i];
    sum += cost_of(margin);
    chosen += rewards[i];
    rejected += rewards[pairs + i];
    right += margin > 0 ? 1 : 0;
    slopes[i] = -1 / (1 + std::exp(margin)) / count;  // -s(-margin) / n
    slopes[pairs + i] = -slopes[i];
  }
  return {sum / count,
          std::move(slopes),
          {{"rewards/chosen", chosen / count},
           {"rewards/rejected", rejected / count},
           {"rewards/accuracies", right / count},
           {"rewards/margins", (chosen - rejected) / count}}};
}

}  // namespace

RewardLoss outcome_reward_loss(const Tensor& scores, std::span<const std::int64_t> lengths) {
  const Shape shape = scores.shape();
  check_scores(shape, lengths);
  const Outcomes found = compare(last_scores(scores, lengths));
  std::vector<double> gradient(static_cast<std::size_t>(scores.numel()));
  for (std::size_t row = 0; row < lengths.size(); ++row) {
    gradient[row * static_cast<std::size_t>(shape[1]) + static_cast<std::size_t>(lengths[row]) - 1] = found.slopes[row];
  }
  Tensor loss = Tensor::full({}, loss_dtype(scores), found.loss);
  autograd::record("outcome_reward_loss", {scores}, {}, {loss},
                   [gradient = std::move(gradient), shape, dtype = scores.dtype()](
                       autograd::Saved, const autograd::Grads& grads, const autograd::Needs&) -> autograd::Grads {
                     const double factor = grads[0].raw() == nullptr ? 0.0 : grads[0].item();
                     std::vector<double> scaled = gradient;
                     for (double& value : scaled) value *= factor;
                     return {Tensor::from(scaled, shape, dtype)};
                   });
  return {loss, found.reports};
}

RewardLoss process_reward_loss(const Tensor& logits, const Tensor& targets, std::span<const std::int32_t> labels) {
  check_model(logits.shape().ndim() == 3, "process_reward_loss: logits {}; [batch, sequence, vocabulary] are needed",
              to_string(logits.shape()));
  const Tensor scored = labels.empty() ? logits : restricted(logits, labels);
  const double share = accuracy(scored, targets);
  return {nn::functional::cross_entropy(scored, targets), {{"rewards/accuracies", share}}};
}

}  // namespace loom::objective
