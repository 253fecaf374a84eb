#include "engine/multimodal/torch_permutation.h"

#include <numeric>
#include <random>
#include <utility>

#include "engine/core/error.h"

namespace loom::multimodal {

std::vector<std::int64_t> torch_permutation(std::int64_t count, std::uint64_t seed) {
  require(0 <= count && count < kMostPermuted, "a permutation of {} numbers", count);
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 engine(static_cast<std::uint32_t>(seed));
  for (std::size_t i = 0; i + 1 < order.size(); ++i) {
    std::swap(order[i], order[i + engine() % (order.size() - i)]);
  }
  return order;
}

}  // namespace loom::multimodal
