#include "models/hub/size_limits.h"

#include <algorithm>

namespace loom::models {

void check_sizes(const config::Section& section, std::span<const SizeLimit> limits) {
  for (const auto& [key, most] : limits) {
    const config::Value* value = section.given(key);
    if (value != nullptr && value->whole().value_or(0) > most) section.reject(key, "it must be at most {}", most);
  }
}

void check_weight(const config::Section& section, std::string_view key, std::int64_t size, std::int64_t other,
                  std::string_view others) {
  const std::int64_t most = std::max<std::int64_t>(kMostWeightElems / other, 1);
  if (size > most) section.reject(key, "with {} it must be at most {}", others, most);
}

}  // namespace loom::models
