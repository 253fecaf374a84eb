#include "engine/data/numpy_random.h"

#include <bit>
#include <limits>

namespace loom::data {

std::uint64_t NumpyRandom::bounded(std::uint64_t most) {
  if (most == 0) return 0;
  const std::uint64_t mask = std::numeric_limits<std::uint64_t>::max() >> std::countl_zero(most);
  const bool wide = most > std::numeric_limits<std::uint32_t>::max();
  while (true) {
    std::uint64_t drawn = engine_();
    if (wide) drawn = drawn << 32 | engine_();
    if ((drawn & mask) <= most) return drawn & mask;
  }
}

}  // namespace loom::data
