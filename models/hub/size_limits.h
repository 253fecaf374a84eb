// Limits of the sizes in a model's configuration, so that products of them stay within 64 bits and a plan of absurd
// sizes ends at once. All are far above any model's.
//
// Errors   ConfigError "WHERE: key is VALUE; it must be at most MOST ..." for the first size above its limit.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/config/section.h"

namespace loom::models {

// Elements of one weight: 4 TiB in fp32.
inline constexpr std::int64_t kMostWeightElems = std::int64_t{1} << 40;

struct SizeLimit {
  std::string_view key;
  std::int64_t most = 0;
};

// Keys that are not given are ignored, and count as unread.
void check_sizes(const config::Section& section, std::span<const SizeLimit> limits);

// A weight of `size` rows, by `key`, times `other` elements each; `others` describes these.
void check_weight(const config::Section& section, std::string_view key, std::int64_t size, std::int64_t other,
                  std::string_view others);

}  // namespace loom::models
