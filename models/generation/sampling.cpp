#include "models/generation/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/rng.h"

namespace loom::models {
namespace {

// The index of the largest logit, after checking all of them.
std::size_t largest(std::span<const float> logits) {
  require(!logits.empty(), "no logits to choose from");
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == std::numeric_limits<float>::infinity()) {
      raise<Error>("logit {} of {} is {}: the model has diverged; train with a smaller learning rate", i, logits.size(),
                   logits[i]);
    }
  }
  const auto best = static_cast<std::size_t>(std::ranges::max_element(logits) - logits.begin());
  if (std::isinf(logits[best])) raise<Error>("all {} logits are -inf: no token is allowed", logits.size());
  return best;
}

// The k tokens of the largest logits, in ascending order of token.
std::vector<std::size_t> top_tokens(std::span<const float> logits, std::size_t k) {
  std::vector<std::size_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), std::size_t{0});
  if (k == 0 || k >= tokens.size()) return tokens;
  const auto last = tokens.begin() + static_cast<std::ptrdiff_t>(k);
  std::nth_element(tokens.begin(), last, tokens.end(), [&](std::size_t a, std::size_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  tokens.erase(last, tokens.end());
  std::ranges::sort(tokens);
  return tokens;
}

}  // namespace

std::int32_t choose_token(std::span<const float> logits, const SamplingOptions& options, std::uint64_t key,
                          std::uint64_t position) {
  require(options.temperature >= 0.0, "temperature is {}", options.temperature);
  require(options.top_k >= 0, "top_k is {}", options.top_k);
  const std::size_t best = largest(logits);
  if (options.temperature == 0.0) return static_cast<std::int32_t>(best);

  const std::vector<std::size_t> tokens = top_tokens(logits, static_cast<std::size_t>(options.top_k));
  std::vector<double> cumulative;
  double total = 0.0;
  for (const std::size_t token : tokens) {
    total += std::exp((static_cast<double>(logits[token]) - logits[best]) / options.temperature);
    cumulative.push_back(total);
  }
  // total >= 1 for the best token's own share, and the draw is below 1, so some sum lies above the mark.
  const double mark = uniform_at(key, position) * total;
  const auto chosen = std::ranges::upper_bound(cumulative, mark) - cumulative.begin();
  return static_cast<std::int32_t>(tokens[static_cast<std::size_t>(chosen)]);
}

}  // namespace loom::models
