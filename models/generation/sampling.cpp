#include "models/generation/sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "engine/core/error.h"
#include "engine/core/rng.h"

namespace loom::models {
namespace {

void check(const SamplingOptions& options) {
  require(options.temperature >= 0.0, "temperature is {}", options.temperature);
  require(options.top_k >= 0, "top_k is {}", options.top_k);
  require(options.top_p >= 0.0, "top_p is {}", options.top_p);
  require(options.min_p >= 0.0, "min_p is {}", options.min_p);
  require(options.repetition_penalty > 0.0, "repetition_penalty is {}", options.repetition_penalty);
}

bool is_choosable(float logit) { return !std::isnan(logit) && logit != std::numeric_limits<float>::infinity(); }

// The index of the largest logit of a model, after checking all of them.
std::size_t largest(std::span<const float> logits) {
  require(!logits.empty(), "no logits to choose from");
  const auto bad = std::ranges::find_if_not(logits, is_choosable);
  if (bad != logits.end()) {
    raise<Error>("logit {} of {} is {}: the model has diverged; train with a smaller learning rate",
                 bad - logits.begin(), logits.size(), std::isnan(*bad) ? "nan" : "inf");
  }
  const auto best = static_cast<std::size_t>(std::ranges::max_element(logits) - logits.begin());
  if (std::isinf(logits[best])) raise<Error>("all {} logits are -inf: no token is allowed", logits.size());
  return best;
}

// The same after the penalty, which alone can have made them what they must not be.
std::size_t largest_penalized(std::span<const float> logits, double penalty) {
  const auto best = static_cast<std::size_t>(std::ranges::max_element(logits) - logits.begin());
  if (std::ranges::all_of(logits, is_choosable) && !std::isinf(logits[best])) return best;
  config_error("the repetition penalty is {}, with which logits leave the range of fp32 ({}); use one nearer to 1",
               penalty, std::numeric_limits<float>::max());
}

// The logits after the penalty: `storage` where there is one.
std::span<const float> penalized(std::span<const float> logits, double penalty, std::span<const std::int32_t> row,
                                 std::vector<float>& storage) {
  if (penalty == 1.0 || row.empty()) return logits;
  storage.assign(logits.begin(), logits.end());
  for (const std::int32_t token : row) {
    if (token < 0 || static_cast<std::size_t>(token) >= logits.size()) continue;
    const auto i = static_cast<std::size_t>(token);
    const auto factor = static_cast<float>(penalty);
    storage[i] = logits[i] > 0 ? logits[i] / factor : logits[i] * factor;  // of the first logits: once a token
  }
  return storage;
}

using Tokens = std::vector<std::size_t>;

// In ascending order of token.
Tokens top_tokens(std::span<const float> logits, std::size_t k) {
  Tokens tokens;
  if (k == 0 || k >= logits.size()) {
    tokens.resize(logits.size());
    std::iota(tokens.begin(), tokens.end(), std::size_t{0});
    return tokens;
  }
  std::vector<float> sorted(logits.begin(), logits.end());
  const auto last = sorted.begin() + static_cast<std::ptrdiff_t>(k) - 1;
  std::nth_element(sorted.begin(), last, sorted.end(), std::greater<>());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] >= *last) tokens.push_back(i);
  }
  return tokens;
}

// Tokens that are kept, in ascending order, and their weights: probabilities but for a common factor, 1 for the
// likeliest.
struct Choices {
  Tokens tokens;
  std::vector<double> weights;

  template <class Keep>
  void keep_if(Keep keep) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (!keep(i)) continue;
      tokens[kept] = tokens[i];
      weights[kept++] = weights[i];
    }
    tokens.resize(kept);
    weights.resize(kept);
  }
};

void keep_top_p(Choices& choices, double p) {
  if (p >= 1.0) return;
  Tokens order(choices.tokens.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
    return choices.weights[a] != choices.weights[b] ? choices.weights[a] > choices.weights[b] : a < b;
  });
  const double mark = p * std::accumulate(choices.weights.begin(), choices.weights.end(), 0.0);
  std::vector<bool> kept(order.size(), false);
  double before = 0;
  for (const std::size_t i : order) {
    if (before > mark) break;
    kept[i] = true;
    before += choices.weights[i];
  }
  choices.keep_if([&](std::size_t i) { return kept[i]; });
}

Choices choices_of(std::span<const float> logits, std::size_t best, const SamplingOptions& options) {
  Choices choices{top_tokens(logits, static_cast<std::size_t>(options.top_k)), {}};
  choices.weights.reserve(choices.tokens.size());
  for (const std::size_t token : choices.tokens) {
    choices.weights.push_back(
        std::exp((static_cast<double>(logits[token]) - static_cast<double>(logits[best])) / options.temperature));
  }
  keep_top_p(choices, options.top_p);
  if (options.min_p > 0) choices.keep_if([&](std::size_t i) { return choices.weights[i] >= options.min_p; });
  return choices;
}

}  // namespace

std::int32_t choose_token(std::span<const float> given, const SamplingOptions& options, std::uint64_t key,
                          std::uint64_t position, std::span<const std::int32_t> row) {
  check(options);
  std::vector<float> storage;
  const std::size_t likeliest = largest(given);
  const std::span<const float> logits = penalized(given, options.repetition_penalty, row, storage);
  const std::size_t best = storage.empty() ? likeliest : largest_penalized(logits, options.repetition_penalty);
  if (options.temperature == 0.0) return static_cast<std::int32_t>(best);
  const Choices choices = choices_of(logits, best, options);
  std::vector<double> cumulative;
  cumulative.reserve(choices.weights.size());
  double total = 0.0;
  for (const double weight : choices.weights) cumulative.push_back(total += weight);
  // total >= 1 for the best token's own share, and the draw is below 1, so some sum lies above the mark.
  const double mark = uniform_at(key, position) * total;
  const auto chosen = std::ranges::upper_bound(cumulative, mark) - cumulative.begin();
  return static_cast<std::int32_t>(choices.tokens[static_cast<std::size_t>(chosen)]);
}

std::vector<double> next_token_probabilities(std::span<const float> given, const SamplingOptions& options,
                                             std::span<const std::int32_t> row) {
  check(options);
  std::vector<float> storage;
  const std::size_t likeliest = largest(given);
  const std::span<const float> logits = penalized(given, options.repetition_penalty, row, storage);
  const std::size_t best = storage.empty() ? likeliest : largest_penalized(logits, options.repetition_penalty);
  std::vector<double> probabilities(logits.size(), 0.0);
  if (options.temperature == 0.0) {
    probabilities[best] = 1.0;
    return probabilities;
  }
  const Choices choices = choices_of(logits, best, options);
  const double total = std::accumulate(choices.weights.begin(), choices.weights.end(), 0.0);
  for (std::size_t i = 0; i < choices.tokens.size(); ++i) probabilities[choices.tokens[i]] = choices.weights[i] / total;
  return probabilities;
}

std::vector<double> log_probabilities(std::span<const float> given, double repetition_penalty,
                                      std::span<const std::int32_t> row) {
  const double highest = given[largest(given)];
  double sum = 0.0;
  for (const float logit : given) sum += std::exp(static_cast<double>(logit) - highest);
  const double log_sum = highest + std::log(sum);
  std::vector<double> result;
  result.reserve(given.size());
  for (const float logit : given) result.push_back(static_cast<double>(logit) - log_sum);
  if (repetition_penalty == 1.0) return result;
  const std::vector<double> before = result;
  for (const std::int32_t token : row) {
    if (token < 0 || static_cast<std::size_t>(token) >= given.size()) continue;
    const auto i = static_cast<std::size_t>(token);
    result[i] = before[i] > 0 ? before[i] / repetition_penalty : before[i] * repetition_penalty;
  }
  return result;
}

}  // namespace loom::models
