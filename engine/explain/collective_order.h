// The collectives of a planned step, group of ranks by group of ranks, in the order in which a rank issues them.
//
// Order     as the host issues them: PyTorch's SeqNum counts the collectives of a process group in this order.
// Names     of PyTorch's OpType, without leading and trailing marks: ALLGATHER is _ALLGATHER_BASE too.
// Elements  of all-gathers: a rank's part in, all parts out; of reduce-scatters the other way round; padding included.
//           PyTorch gathers groups of several dtypes as bytes.
// Threads   any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/device/recording.h"

namespace loom::explain {

struct PlannedCollective {
  std::string op;       // "ALLGATHER"
  std::string subject;  // path of the FSDP group, or what the collective is for; empty: the root's
  std::string phase;    // "forward", "backward", "optimizer"
  std::int64_t micro_batch = 0;
  bool of_group = false;    // a gather or a reduction of an FSDP group
  bool prefetched = false;  // a gather that is issued on behalf of another group
  std::int64_t bytes = 0;   // of the whole tensor
  std::int64_t ranks = 1;
  std::int64_t element_bytes = 0;  // on the wire; 0: not recorded

  // By element_bytes; none where the collective has no two sizes of that kind.
  std::optional<std::int64_t> numel_in() const;
  std::optional<std::int64_t> numel_out() const;
};

// What a watchdog says of a collective.
struct SeenCollective {
  std::string op;  // as PyTorch writes it
  std::optional<std::int64_t> numel_in;
  std::optional<std::int64_t> numel_out;

  bool operator==(const SeenCollective&) const = default;
};

// "_ALLGATHER_BASE" is ALLGATHER.
std::string_view plain_op(std::string_view op);
// Whether the two may be the same collective. Sizes that one of them does not have are not compared.
bool may_be(const SeenCollective& seen, const PlannedCollective& planned);
// "all-gather of group 'layers.3' in backward of micro-batch 0".
std::string to_text(const PlannedCollective& planned);

struct CollectiveOrder {
  std::string axis;        // "dp_shard"
  std::vector<int> ranks;  // of the world, ascending
  std::vector<PlannedCollective> step;
};

// In the order of each group's first collective.
std::vector<CollectiveOrder> collective_orders(const device::Recording& recording);

}  // namespace loom::explain
