#include "engine/data/blend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"

namespace loom::data {
namespace {

constexpr std::size_t kMostSets = 32766;  // Megatron numbers them in 16 bits

// numpy's sum of a contiguous array: eight sums side by side up to 128 values, halves above.
double pairwise_sum(std::span<const double> values) {
  constexpr std::size_t kLanes = 8;
  constexpr std::size_t kBlock = 128;
  if (values.size() < kLanes) return std::accumulate(values.begin(), values.end(), 0.0);
  if (values.size() > kBlock) {
    const std::size_t half = values.size() / 2 / kLanes * kLanes;
    return pairwise_sum(values.first(half)) + pairwise_sum(values.subspan(half));
  }
  std::array<double, kLanes> lane{};
  std::copy_n(values.begin(), kLanes, lane.begin());
  std::size_t i = kLanes;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (std::size_t k = 0; k < kLanes; ++k) lane[k] += values[i + k];
  }
  const double sum = ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
  return std::accumulate(values.begin() + static_cast<std::ptrdiff_t>(i), values.end(), sum);
}

void check_weight(const std::string& flag, const std::string& word, double weight) {
  if (std::isfinite(weight) && weight > 0) return;
  config_error("{}: the weight '{}' is not above 0; leave the data set out, or give it a weight", flag, word);
}

// Draws one after another from the data sets that have samples left.
class Draw {
 public:
  explicit Draw(std::span<const double> weights) : weights_(weights), taken_(weights.size()) {
    for (std::size_t d = 0; d < weights.size(); ++d) {
      if (weights[d] > 0) open_.push_back(d);
    }
  }

  std::size_t furthest_behind(std::int64_t sample) const {
    const double drawn = std::max(static_cast<double>(sample), 1.0);
    std::size_t found = 0;
    double most = std::numeric_limits<double>::lowest();
    for (const std::size_t d : open_) {
      const double behind = weights_[d] * drawn - static_cast<double>(taken_[d]);
      if (behind > most) {
        most = behind;
        found = d;
      }
    }
    return found;
  }

  std::int64_t take(std::size_t d, BlendIndex& index) {
    index.dataset.push_back(static_cast<std::int16_t>(d));
    index.sample.push_back(taken_[d]);
    return ++taken_[d];
  }
  void close(std::size_t d) { std::erase(open_, d); }
  bool is_over() const { return open_.empty(); }

 private:
  std::span<const double> weights_;
  std::vector<std::int64_t> taken_;
  std::vector<std::size_t> open_;
};

BlendIndex reserved(std::int64_t size) {
  BlendIndex index;
  index.dataset.reserve(static_cast<std::size_t>(size));
  index.sample.reserve(static_cast<std::size_t>(size));
  return index;
}

}  // namespace

DataBlend parse_blend(const std::string& flag, const std::vector<std::string>& words) {
  if (words.empty()) config_error("{}: it names no data set; give the prefix of a .bin/.idx pair", flag);
  std::vector<std::optional<double>> weights;
  if (words.size() % 2 == 0) {
    for (std::size_t i = 0; i < words.size(); i += 2) weights.push_back(parse_number<double>(words[i]));
  }
  const auto has_value = [](const std::optional<double>& weight) { return weight.has_value(); };
  const auto numbers = static_cast<std::size_t>(std::ranges::count_if(weights, has_value));
  if (numbers != 0 && numbers != weights.size()) {
    const auto at = static_cast<std::size_t>(std::ranges::find_if_not(weights, has_value) - weights.begin());
    config_error(
        "{}: '{}' is in the place of a weight, and other prefixes have one; give each prefix a weight, or none", flag,
        shown_text(words[2 * at]));
  }
  DataBlend blend;
  if (numbers == 0) {
    blend.prefixes.assign(words.begin(), words.end());
  } else {
    blend.weights.emplace();
    for (std::size_t i = 0; i < weights.size(); ++i) {
      check_weight(flag, words[2 * i], *weights[i]);
      blend.weights->push_back(*weights[i]);
      blend.prefixes.emplace_back(words[2 * i + 1]);
    }
  }
  if (blend.prefixes.size() > kMostSets) {
    config_error("{}: it names {} data sets, and a blend has at most {}; merge some", flag, blend.prefixes.size(),
                 kMostSets);
  }
  return blend;
}

std::vector<double> normalized(std::span<const double> weights) {
  const double sum = pairwise_sum(weights);
  std::vector<double> parts(weights.begin(), weights.end());
  for (double& part : parts) part /= sum;
  return parts;
}

BlendIndex blend_by_weight(std::span<const double> weights, std::int64_t size) {
  Draw draw(weights);
  require(size == 0 || !draw.is_over(), "a blend of {} samples without weights", size);
  BlendIndex index = reserved(size);
  for (std::int64_t s = 0; s < size; ++s) draw.take(draw.furthest_behind(s), index);
  return index;
}

BlendIndex blend_all(std::span<const std::int64_t> sizes) {
  const std::int64_t total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  std::vector<double> weights;
  for (const std::int64_t size : sizes) {
    weights.push_back(total == 0 ? 0 : static_cast<double>(size) / static_cast<double>(total));
  }
  Draw draw(weights);
  BlendIndex index = reserved(total);
  for (std::int64_t s = 0; !draw.is_over(); ++s) {
    const std::size_t d = draw.furthest_behind(s);
    if (draw.take(d, index) == sizes[d]) draw.close(d);
  }
  return index;
}

}  // namespace loom::data
