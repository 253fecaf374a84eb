// Which tokens of a sequence a rank has, where ranks share sequences (context parallelism).
//
// Letters   c = r x u ranks share S tokens: u of a group of Ulysses, which exchange heads, and r of a ring, which pass
//           keys and values. Ulysses' ranks are neighbours: rank i is rank i / u of its ring and i % u of its group.
// Zigzag    r > 1: the sequence is cut into 2r chunks, ring rank j has chunks j and 2r - 1 - j, in this order. Under a
//           causal mask every step of the ring then costs the same. Those 2S / 2r tokens are cut into u parts, one
//           behind another.
// Source    MindSpeed (hybrid_cp_algo), PyTorch (context_parallel, head-tail load balancer).
#pragma once

#include <cstdint>
#include <vector>

namespace loom::dist {

struct ContextDegrees {
  int ring = 1;
  int ulysses = 1;

  int ranks() const { return ring * ulysses; }
};

// A sequence's length is a multiple of this.
std::int64_t length_unit(const ContextDegrees& degrees);

struct TokenRange {
  std::int64_t begin = 0, end = 0;  // half open

  bool operator==(const TokenRange&) const = default;
};

// Those of `rank` of `degrees`, in its own order; neighbouring ranges are one. Precondition: length_unit() divides
// `tokens`.
std::vector<TokenRange> token_ranges(std::int64_t tokens, const ContextDegrees& degrees, int rank);

}  // namespace loom::dist
