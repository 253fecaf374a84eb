// Bytes to the values that a vision model reads: (byte / 255 - mean) / std, a channel at a time, as numpy rounds it.
//
// Threads  any number at once.
#pragma once

#include <array>
#include <cstdint>

namespace loom::images {

using Channels = std::array<float, 3>;  // red, green, blue

inline constexpr Channels kClipMean{0.48145466F, 0.4578275F, 0.40821073F};
inline constexpr Channels kClipStd{0.26862954F, 0.26130258F, 0.27577711F};
inline constexpr Channels kImageNetMean{0.485F, 0.456F, 0.406F};
inline constexpr Channels kImageNetStd{0.229F, 0.224F, 0.225F};

// [channel][byte]: byte * (1 / 255) in fp64, rounded to fp32; then minus mean, divided by std, in fp32.
using ValueTable = std::array<std::array<float, 256>, 3>;

// ConfigError unless mean and std are finite and std is above 0.
ValueTable value_table(const Channels& mean, const Channels& std);

}  // namespace loom::images
