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

// The kind of work, if code depends on it. Rooms that issue other work than that below name theirs
// (sharding/streams.h). Two with the same word are equal.
class WorkKind {
 public:
  static const WorkKind kOther;
  static const WorkKind kAttention;          // its forward
  static const WorkKind kAttentionBackward;  // has rates of its own
  static const WorkKind kH2D;                // to the device over the host link
  static const WorkKind kD2H;                // to the host
  static const WorkKind kAllGather;
  static const WorkKind kReduceScatter;
  static const WorkKind kAllReduce;
  static const WorkKind kAllToAll;
  static const WorkKind kSendRecv;

  // `word` is a literal.
  constexpr explicit WorkKind(std::string_view word) : word_(word) {}
  friend constexpr bool operator==(WorkKind a, WorkKind b) { return a.word_ == b.word_; }

 private:
  std::string_view word_;
};

inline constexpr WorkKind WorkKind::kOther{"other"};
inline constexpr WorkKind WorkKind::kAttention{"attention"};
inline constexpr WorkKind WorkKind::kAttentionBackward{"attention backward"};
inline constexpr WorkKind WorkKind::kH2D{"h2d"};
inline constexpr WorkKind WorkKind::kD2H{"d2h"};
inline constexpr WorkKind WorkKind::kAllGather{"all-gather"};
inline constexpr WorkKind WorkKind::kReduceScatter{"reduce-scatter"};
inline constexpr WorkKind WorkKind::kAllReduce{"all-reduce"};
inline constexpr WorkKind WorkKind::kAllToAll{"all-to-all"};
inline constexpr WorkKind WorkKind::kSendRecv{"send-recv"};

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
// group of these two, or one from each member of a ring to the next. kMessage: from the first of two ranks to the
// second, each on a stream of its own.
enum class CollectiveKind : std::uint8_t { kAllGather, kReduceScatter, kAllReduce, kAllToAll, kSendRecv, kMessage };

// A collective as the links see it.
struct Collective {
  CollectiveKind kind = CollectiveKind::kAllGather;
  // The size of the whole tensor: N times a rank's part; all-reduce: the size of a rank's tensor; all-to-all: the bytes
  // that a rank sends to the others or receives from them, whichever is larger, times N / (N - 1) (equal parts: all
  // that it sends, its own part too); messages: of one, sent or received, whichever is larger. Members of an
  // all-to-all and of a ring may differ: the largest counts.
  std::int64_t bytes = 0;
  // Members as world ranks, ascending; of a message, who sends and who receives. Outlives the call.
  const std::vector<int>* ranks = nullptr;
  std::string_view axis = {};  // the name of their group: "dp_shard"; copied when recorded
};

}  // namespace loom::device
