#include "engine/dist/context_layout.h"

#include <algorithm>
#include <numeric>

#include "engine/core/error.h"

namespace loom::dist {

std::int64_t length_unit(const ContextDegrees& degrees) {
  if (degrees.ring == 1) return degrees.ulysses;
  return std::int64_t{degrees.ring} * std::lcm(2, degrees.ulysses);
}

std::vector<TokenRange> token_ranges(std::int64_t tokens, const ContextDegrees& degrees, int rank) {
  require(tokens % length_unit(degrees) == 0, "{} tokens among ring {} x Ulysses {}", tokens, degrees.ring,
          degrees.ulysses);
  const std::int64_t ring_rank = rank / degrees.ulysses, chunk = tokens / (2 * degrees.ring);
  std::vector<TokenRange> of_ring{{0, tokens}};
  if (degrees.ring > 1) {
    const std::int64_t last = 2 * degrees.ring - 1 - ring_rank;
    of_ring = {{ring_rank * chunk, (ring_rank + 1) * chunk}, {last * chunk, (last + 1) * chunk}};
  }
  const std::int64_t part = tokens / degrees.ranks();
  std::int64_t skip = rank % degrees.ulysses * part, wanted = part;
  std::vector<TokenRange> own;
  for (const TokenRange& range : of_ring) {
    const std::int64_t size = range.end - range.begin, skipped = std::min(skip, size);
    const std::int64_t taken = std::min(wanted, size - skipped);
    const TokenRange kept{range.begin + skipped, range.begin + skipped + taken};
    if (taken > 0 && !own.empty() && own.back().end == kept.begin) {
      own.back().end = kept.end;
    } else if (taken > 0) {
      own.push_back(kept);
    }
    skip -= skipped;
    wanted -= taken;
  }
  return own;
}

}  // namespace loom::dist
