#include "models/decoder/rotary_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace loom::models {
namespace {

// b^(2 i / d).
float power(double base, std::int64_t i, std::int64_t dim) {
  const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
  return static_cast<float>(std::pow(base, static_cast<double>(exponent)));
}

double scaled_base(const Rotary& rotary, std::int64_t n) {
  const double s = rotary.scaling.factor, d = static_cast<double>(rotary.head_dim);
  const double ratio = s * static_cast<double>(n) / static_cast<double>(rotary.max_position_embeddings) - (s - 1);
  return rotary.theta * std::pow(ratio, d / (d - 2));
}

float llama3(const RotaryScaling& scaling, float frequency) {
  const double original = static_cast<double>(scaling.original_max_position_embeddings);
  const float wavelength = static_cast<float>(2 * std::numbers::pi) / frequency;
  const float factor = static_cast<float>(scaling.factor);
  if (wavelength > static_cast<float>(original / scaling.low_freq_factor)) return frequency / factor;
  if (wavelength < static_cast<float>(original / scaling.high_freq_factor)) return frequency;
  const float rotations = static_cast<float>(original) / wavelength;
  const float blend = (rotations - static_cast<float>(scaling.low_freq_factor)) /
                      static_cast<float>(scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0f - blend) * frequency / factor + blend * frequency;
}

// Where frequencies change from f to f / s, counted in pairs of dims.
struct Ramp {
  double low = 0;
  double high = 0;

  explicit Ramp(const Rotary& rotary) {
    const auto pair_with = [&](double rotations) {
      const double original = static_cast<double>(rotary.scaling.original_max_position_embeddings);
      return static_cast<double>(rotary.head_dim) * std::log(original / (rotations * 2 * std::numbers::pi)) /
             (2 * std::log(rotary.theta));
    };
    low = pair_with(rotary.scaling.beta_fast);
    high = pair_with(rotary.scaling.beta_slow);
    if (rotary.scaling.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, static_cast<double>(rotary.head_dim - 1));
    if (low == high) high += 0.001;
  }

  float at(std::int64_t i) const {
    return std::clamp((static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f, 1.0f);
  }
};

float yarn(const Ramp& ramp, double factor, float power, std::int64_t i) {
  const float kept = 1.0f - ramp.at(i);
  return 1.0f / (static_cast<float>(factor) * power) * (1.0f - kept) + 1.0f / power * kept;
}

}  // namespace

std::string_view name(RopeType type) {
  switch (type) {
    case RopeType::kLinear:
      return "linear";
    case RopeType::kDynamic:
      return "dynamic";
    case RopeType::kLlama3:
      return "llama3";
    case RopeType::kYarn:
      return "yarn";
    case RopeType::kLongRope:
      return "longrope";
    case RopeType::kDefault:
      break;
  }
  return "default";
}

bool depends_on_length(const RotaryScaling& scaling) {
  return scaling.type == RopeType::kDynamic || scaling.type == RopeType::kLongRope;
}

std::int64_t frequency_length(const Rotary& rotary, std::int64_t before, std::int64_t length) {
  const std::int64_t original = rotary.scaling.original_max_position_embeddings, most = rotary.max_position_embeddings;
  if (rotary.scaling.type == RopeType::kLongRope) return length > original ? original + 1 : original;
  if (rotary.scaling.type != RopeType::kDynamic) return most;
  return length < most ? most : std::max({before, length, most});
}

std::vector<float> rotary_frequencies(const Rotary& rotary, std::int64_t n) {
  const RotaryScaling& scaling = rotary.scaling;
  const double base = scaling.type == RopeType::kDynamic ? scaled_base(rotary, n) : rotary.theta;
  const auto& divisors = n > scaling.original_max_position_embeddings ? scaling.long_factor : scaling.short_factor;
  std::optional<Ramp> ramp;
  if (scaling.type == RopeType::kYarn) ramp.emplace(rotary);
  std::vector<float> frequencies;
  for (std::int64_t i = 0; i < rotary.head_dim / 2; ++i) {
    const float divisor = power(base, i, rotary.head_dim);
    float frequency = 1.0f / divisor;
    if (scaling.type == RopeType::kLinear) frequency /= static_cast<float>(scaling.factor);
    if (scaling.type == RopeType::kLlama3) frequency = llama3(scaling, frequency);
    if (ramp) frequency = yarn(*ramp, scaling.factor, divisor, i);
    if (scaling.type == RopeType::kLongRope)
      frequency = 1.0f / (static_cast<float>(divisors[static_cast<std::size_t>(i)]) * divisor);
    frequencies.push_back(frequency);
  }
  return frequencies;
}

double attention_factor(const Rotary& rotary) {
  const RotaryScaling& scaling = rotary.scaling;
  if (scaling.attention_factor) return *scaling.attention_factor;
  const double s = scaling.factor, log_factor = s <= 1 ? 0 : std::log(s);
  const auto grown = [&](double mscale) { return 0.1 * mscale * log_factor + 1; };
  if (scaling.type == RopeType::kYarn) {
    const bool both = scaling.mscale != 0 && scaling.mscale_all_dim != 0;
    return both ? grown(scaling.mscale) / grown(scaling.mscale_all_dim) : grown(1);
  }
  if (scaling.type != RopeType::kLongRope || s <= 1) return 1;
  return std::sqrt(1 + log_factor / std::log(static_cast<double>(scaling.original_max_position_embeddings)));
}

std::int64_t longest_sequence(const Rotary& rotary) {
  const std::int64_t most = rotary.max_position_embeddings;
  const auto times_factor = [&](std::int64_t positions) {
    return std::max(most, static_cast<std::int64_t>(rotary.scaling.factor * static_cast<double>(positions)));
  };
  switch (rotary.scaling.type) {
    case RopeType::kLinear:
    case RopeType::kDynamic:
      return times_factor(most);
    case RopeType::kYarn:
      return times_factor(rotary.scaling.original_max_position_embeddings);
    default:
      return most;
  }
}

std::vector<int> mrope_axes(const RotaryScaling& scaling) {
  const std::vector<std::int64_t>& section = scaling.mrope_section;
  std::vector<int> axes(static_cast<std::size_t>(section[0] + section[1] + section[2]), 0);
  for (std::int64_t i = 0; i < std::ssize(axes); ++i) {
    int& axis = axes[static_cast<std::size_t>(i)];
    if (!scaling.mrope_interleaved) {
      axis = i < section[0] ? 0 : i < section[0] + section[1] ? 1 : 2;
    } else if (i % 3 != 0 && i < 3 * section[static_cast<std::size_t>(i % 3)]) {
      axis = static_cast<int>(i % 3);
    }
  }
  return axes;
}

}  // namespace loom::models
