#include "engine/objective/preference_loss.h"

#include <cmath>

#include "engine/core/error.h"
#include "engine/tensor/autograd.h"

namespace loom::objective {
namespace {

constexpr double kLeastFtx = 1e-6;

double log_sigmoid(double x) { return x < 0 ? x - std::log1p(std::exp(x)) : -std::log1p(std::exp(-x)); }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

struct Slope {
  double value = 0;
  double derivative = 0;  // by h
};

Slope loss_of(double h, const PreferenceOptions& o) {
  const double x = o.beta * h, e = o.label_smoothing;
  switch (o.loss_type) {
    case PreferenceLossType::kSigmoid:
      return {-(1 - e) * log_sigmoid(x) - e * log_sigmoid(-x), o.beta * (e * sigmoid(x) - (1 - e) * sigmoid(-x))};
    case PreferenceLossType::kHinge:
      return x < 1 ? Slope{1 - x, -o.beta} : Slope{};
    case PreferenceLossType::kIpo: {
      const double off = h - 1 / (2 * o.beta);
      return {off * off, 2 * off};
    }
  }
  return {};
}

// What a loss is made of, row by row.
class Pairs {
 public:
  Pairs(std::span<const double> log_probs, const AnswerFigures& answers, const PreferenceOptions& options)
      : log_probs_(log_probs), answers_(answers), options_(options), count_(log_probs.size() / 2) {}

  // The loss, and its derivatives by each row's log-probability.
  double loss(std::vector<double>& derivatives) const {
    derivatives.assign(log_probs_.size(), 0);
    const auto pairs = static_cast<double>(count_);
    double sum = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      const std::size_t j = count_ + i;
      const Slope slope = loss_of(difference(i), options_);
      sum += slope.value;
      derivatives[i] += slope.derivative * scale(i) / pairs;
      derivatives[j] -= slope.derivative * scale(j) / pairs;
      if (options_.pref_ftx <= kLeastFtx) continue;
      sum -= options_.pref_ftx * average(log_probs_[i], i);
      derivatives[i] -= options_.pref_ftx * average(1, i) / pairs;
    }
    return sum / pairs;
  }

  std::vector<std::pair<std::string, double>> reports() const {
    double chosen = 0, rejected = 0, right = 0, log_chosen = 0, log_rejected = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      chosen += reward(i);
      rejected += reward(count_ + i);
      right += reward(i) > reward(count_ + i) ? 1 : 0;
      log_chosen += log_probs_[i];
      log_rejected += log_probs_[count_ + i];
    }
    const auto mean = [this](double sum) { return sum / static_cast<double>(count_); };
    return {{"rewards/chosen", mean(chosen)},    {"rewards/rejected", mean(rejected)},
            {"rewards/accuracies", mean(right)}, {"rewards/margins", mean(chosen - rejected)},
            {"logps/chosen", mean(log_chosen)},  {"logps/rejected", mean(log_rejected)}};
  }

 private:
  bool averages() const { return options_.simpo || options_.loss_type == PreferenceLossType::kIpo; }
  double average(double value, std::size_t row) const {
    return answers_.tokens[row] == 0 ? 0 : value / static_cast<double>(answers_.tokens[row]);
  }
  double scale(std::size_t row) const { return averages() ? average(1, row) : 1; }
  double reference(std::size_t row) const { return options_.simpo ? 0 : answers_.reference[row]; }
  double difference(std::size_t i) const {
    const auto of = [this](std::size_t row) { return (log_probs_[row] - reference(row)) * scale(row); };
    return of(i) - of(count_ + i) - (options_.simpo ? options_.gamma_beta_ratio : 0);
  }
  double reward(std::size_t row) const {
    if (options_.simpo) return options_.beta * average(log_probs_[row], row);
    return options_.beta * (log_probs_[row] - reference(row));
  }

  const std::span<const double> log_probs_;
  const AnswerFigures& answers_;
  const PreferenceOptions& options_;
  const std::size_t count_;
};

}  // namespace

PreferenceLoss preference_loss(const Tensor& log_probs, const AnswerFigures& answers,
                               const PreferenceOptions& options) {
  const std::int64_t rows = log_probs.numel();
  const auto has_rows = [&](std::size_t figures) { return std::cmp_equal(figures, rows); };
  check_model(
      log_probs.shape().ndim() == 1 && rows > 0 && rows % 2 == 0 && has_rows(answers.tokens.size()) &&
          (options.simpo || has_rows(answers.reference.size())),
      "preference_loss: log-probabilities {}, {} of a reference model and {} lengths; one of each for every row "
      "is needed, chosen answers and then as many rejected ones",
      to_string(log_probs.shape()), answers.reference.size(), answers.tokens.size());
  const std::vector<double> values =
      log_probs.raw() == nullptr ? std::vector<double>(static_cast<std::size_t>(rows)) : log_probs.to_vector<double>();
  const Pairs pairs(values, answers, options);
  std::vector<double> derivatives;
  const double value = pairs.loss(derivatives);
  Tensor loss = Tensor::full({}, log_probs.dtype(), value);
  autograd::record("preference_loss", {log_probs}, {}, {loss},
                   [derivatives, shape = log_probs.shape(), dtype = log_probs.dtype()](
                       autograd::Saved, const autograd::Grads& grads, const autograd::Needs&) -> autograd::Grads {
                     const double factor = grads[0].raw() == nullptr ? 0.0 : grads[0].item();
                     std::vector<double> gradient = derivatives;
                     for (double& d : gradient) d *= factor;
                     return {Tensor::from(gradient, shape, dtype)};
                   });
  return {loss, pairs.reports()};
}

}  // namespace loom::objective
