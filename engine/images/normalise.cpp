#include "engine/images/normalise.h"

#include <cmath>
#include <string_view>

#include "engine/core/error.h"

namespace loom::images {
namespace {

constexpr std::string_view kColors[] = {"red", "green", "blue"};

void check(float mean, float std, std::string_view color) {
  if (std::isfinite(mean) && std::isfinite(std) && std > 0) return;
  config_error("pictures: mean {} and std {} of {}; both must be finite and std above 0", mean, std, color);
}

}  // namespace

ValueTable value_table(const Channels& mean, const Channels& std) {
  ValueTable table{};
  for (std::size_t c = 0; c < table.size(); ++c) {
    check(mean[c], std[c], kColors[c]);
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const auto value = static_cast<float>(static_cast<double>(byte) * (1.0 / 255));
      table[c][byte] = (value - mean[c]) / std[c];
    }
  }
  return table;
}

}  // namespace loom::images
