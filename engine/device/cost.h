// Cost: the demand of a piece of device work on the hardware. Given with every kernel and stream item; a time model
// (time_model.h) converts it to nanoseconds.
//
// Letters  matrix products: batch times [m, k] x [k, n]. Attention: batch = batch * heads, m = queries, n = keys, k =
//          head_dim.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/core/dtype.h"

namespace loom::device {

// The hardware unit that does the work.
enum class Unit : std::uint8_t {
  kVector,     // element-wise and reductions: memory-bound
  kMatrix,     // matrix products
  kAttention,  // fused attention
  kCopy,       // copies inside the device, also with a cast
  kHostLink,   // copies from and to the host
  kLink,       // collectives
};

// The kind of work, if code depends on it; names are for people.
enum class WorkKind : std::uint8_t {
  kOther,
  kAttention,          // its forward
  kAttentionBackward,  // has rates of its own
  kH2D,                // to the device over the host link
  kD2H,                // to the host
  kGatherCopyIn,       // shards into their place before an all-gather
  kGatherCopyOut,      // gathered parameters into theirs
  kReduceCopyIn,       // gradients into the input of a reduction
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  kSendRecv,
};

struct Cost {
  double flops = 0;
  std::int64_t read_bytes = 0;
  std::int64_t written_bytes = 0;
  std::int64_t link_bytes = 0;  // bytes this rank receives over links
  Unit unit = Unit::kVector;
  DType dtype = DType::kF32;  // of matrix products and attention
  std::int64_t batch = 1;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool pinned = false;  // kHostLink: the host's side is page-locked
  WorkKind work = WorkKind::kOther;
};

// kAllToAll: a part from every member to every other one, of any bytes. kSendRecv: a message between two members, in a
// group of these two, or one from each member of a ring to the next.
enum class CollectiveKind : std::uint8_t { kAllGather, kReduceScatter, kAllReduce, kAllToAll, kSendRecv };

// A collective as the links see it.
struct Collective {
  CollectiveKind kind = CollectiveKind::kAllGather;
  // The size of the whole tensor: N times a rank's part; all-reduce: the size of a rank's tensor; all-to-all: the bytes
  // that a rank sends to the others or receives from them, whichever is larger, times N / (N - 1) (equal parts: all
  // that it sends, its own part too); messages: of one, sent or received, whichever is larger. Members of an
  // all-to-all and of a ring may differ: the largest counts.
  std::int64_t bytes = 0;
  const std::vector<int>* ranks = nullptr;  // members as world ranks, ascending; outlives the call
  std::string_view axis = {};               // the name of their group: "dp_shard"; copied when recorded
};

}  // namespace loom::device
