// Causal attention of ranks that share sequences (context parallelism): Ulysses, ring, both, or gathered keys.
//
// Letters   c = r x u ranks (context_layout.h); every rank has S / c positions of B sequences, in the layout's order.
// Ulysses   heads are exchanged for positions: a rank has H / u heads of S / r positions, attends, and gives them back.
//           4 all-to-alls, and 4 in backward. Fewer key/value heads than u are repeated first.
// Ring      keys and values go round: r - 1 exchanges of both in one buffer; r - 1 in backward, and r of their
//           gradients, which arrive home. Exchanges run beside the attention of the keys that are here. Partial results
//           are joined by their log-sum-exps, in fp32 (fp64 for fp64).
// Gathered  keys and values are gathered once and kept; their gradients are reduce-scattered.
// Segments  ends count over the whole sequences, as of one rank: row b's position s is b * S + s.
// Bits      depend on r and on `keys`, not on u.
// Kernels   the fused attention, with --kernels pytorch too (but not r = 1), as PyTorch's ring runs its own.
// Threads   the rank's host thread. Errors and order of calls as operators.h.
#pragma once

#include <memory>
#include <string>

#include "engine/dist/channel.h"
#include "engine/dist/context_layout.h"
#include "engine/tensor/ops.h"

namespace loom::comm {
class DeviceMesh;
}

namespace loom::dist {

enum class RingKeys : std::uint8_t {
  kPassed,      // to the neighbour, in backward too
  kRegathered,  // gathered, and again in backward; gradients go round (torch: rotate method "allgather")
  kGathered,    // gathered and kept
};

struct Context {
  Channel ulysses;
  Channel ring;
  RingKeys keys = RingKeys::kPassed;

  ContextDegrees degrees() const { return {ring.size(), ulysses.size()}; }
  // This rank among all that share sequences.
  int rank() const { return ring.rank() * ulysses.size() + ulysses.rank(); }
};

// Over the axes "ring" and "ulysses" of a mesh.
Context context_of(const comm::DeviceMesh& mesh, RingKeys keys = RingKeys::kPassed);

// Attached by the author of a module that works on part of a sequence: the context is set where ranks share sequences
// (sharding/context/share_sequences.h), and null otherwise.
struct ContextSlot {
  std::int64_t heads = 0;  // of its attention; 0: it has none of its own
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;  // of queries, keys and values
  std::shared_ptr<const Context> context = nullptr;
  std::string path = {};  // of the module
};

// One rank's attention on whole positions and some heads.
using WholeAttention = Tensor (*)(const Tensor& q, const Tensor& k, const Tensor& v, double scale,
                                  const ops::SegmentEnds& ends);

// q [B,S/c,H,D]; k, v [B,S/c,G,D] -> [B,S/c,H,D]. `whole` attends where r is 1. `tag` as in operators.h.
// ModelError where u does not divide H, or neither of u and G divides the other.
Tensor context_attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale, const ops::SegmentEnds& ends,
                         const Context& context, WholeAttention whole, const std::string& tag);

}  // namespace loom::dist
