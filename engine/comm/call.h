// Call: one rank's call of a collective, as peers compare it and as errors name it. Private to engine/comm.
//
// Every transport compares the members' calls before a byte moves, and takes its error texts from here, so that threads
// and processes report the same.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/comm/peer_reduction.h"
#include "engine/comm/process_group.h"

namespace loom::comm {

enum class CallKind : std::uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kBarrier,
  kShare,
  kSplit,
  kAllToAll,
  kSendRecv
};

struct Call {
  CallKind kind = CallKind::kBarrier;
  std::string tag;
  std::uint64_t bytes = 0;   // per rank: gathered, scattered, kept after the reduction, reduced, broadcast or shared
  std::uint64_t layout = 0;  // fingerprint of the parts of a gather or scatter
  DType dtype = DType::kU8;  // reductions only
  ReduceOp op;               // reductions only
  int root = 0;              // broadcast only
  // Bytes sent to, and expected from, the peer that the call is compared with: all_to_all and send_recv.
  std::uint64_t sent = 0;
  std::uint64_t expected = 0;
  // World ranks or kNobody: send_recv.
  int to = ProcessGroup::kNobody;
  int from = ProcessGroup::kNobody;

  static Call all_gather(std::span<const GatherPart> parts, std::string_view tag);
  // kReduceScatter or kAllReduce.
  static Call reduction(CallKind kind, std::int64_t elems, DType dtype, ReduceOp op, std::string_view tag);
  // kReduceScatter of parts.
  static Call reduction(std::span<const ReducePart> parts, DType input_dtype, DType dtype, ReduceOp op,
                        std::string_view tag);
  static Call broadcast(std::size_t bytes, int root, std::string_view tag);
  static Call all_to_all(std::string_view tag);
  // `to` and `from` are world ranks or kNobody.
  static Call send_recv(int to, std::size_t sent, int from, std::size_t expected, std::string_view tag);
  static Call share(std::size_t bytes, std::string_view tag);
  static Call barrier(std::string_view tag);
  // Splits the world into groups called `name`.
  static Call split(std::string_view name);
};

// A Call of fixed size, for the wire. A tag longer than the room is cut and compared by its fingerprint.
struct WireCall {
  std::array<char, 176> tag{};
  std::uint64_t tag_fingerprint = 0;
  std::uint64_t bytes = 0;
  std::uint64_t layout = 0;
  double factor = 1.0;
  std::array<std::int64_t, 2> note{};  // the transport's own
  std::uint64_t sent = 0;
  std::uint64_t expected = 0;
  std::int32_t root = 0;
  std::int32_t to = 0;
  std::int32_t from = 0;
  CallKind kind{};
  DType dtype{};
  ReduceKind reduce{};
};
WireCall to_wire(const Call& call);
Call from_wire(const WireCall& wire);

// A rank's arguments of a split.
struct SplitChoice {
  int color = 0;
  int key = 0;
};
// World ranks that chose the colour of `rank`, by key, then by rank. Throws InvariantError for one below kNoColor.
std::vector<int> members_of_split(std::span<const SplitChoice> choices, int rank);
// How the group that a split made differs from the expected group, or nothing.
std::optional<std::string> unexpected_members(int rank, std::span<const int> expected, std::span<const int> members);

// The members of a group, for errors: "group 'dp_shard' (ranks 0,1)". More than 16 ranks are shortened.
std::string group_label(std::string_view name, std::span<const int> ranks);
std::string list_ranks(std::span<const int> ranks);

// "all_gather 'layers.3'", "send 'layers.3' to rank 1"
std::string describe(const Call& call);
// "[rank 1] all_gather 'layers.3' in group 'dp_shard' (ranks 0,1): "
std::string where(int rank, const Call& call, std::string_view group_label);
// How `theirs` differs from `mine`, or nothing where they agree.
std::optional<std::string> difference(int my_rank, const Call& mine, int their_rank, const Call& theirs);
// What sender and receiver of a message give as its bytes, where that is not the same.
std::string count_difference(int sender, std::uint64_t sent, int receiver, std::uint64_t expected);
// "rank 0 failed first: <its message>"
std::string failed_first(int rank, std::string_view reason);

// A peer that did not come, with its last call: describe() of it, or empty.
struct Missing {
  int rank = 0;
  std::string last_entered;
};
std::string did_not_come(std::span<const Missing> missing, std::chrono::milliseconds timeout);
std::string has_ended(const Missing& missing);

// Throw InvariantError: an all_to_all without a part for each of `size` members, or whose own two parts (of `rank`)
// differ; a send_recv with someone who is no member, or from another to itself.
void check_parts(std::span<const Outgoing> sends, std::span<const Incoming> receives, int rank, int size,
                 std::string_view tag);
void check_peers(int to, Outgoing sent, int from, Incoming received, int rank, int size, std::string_view tag);

// out = op over `inputs`, one a member, in their order (engine/kernels/reduce.h).
void reduce_in_order(ReduceOp op, DType dtype, std::span<const void* const> inputs, std::int64_t elems, void* out);
// The same in fp32 of fp16 or bf16 inputs, for sums.
void reduce_in_order_as_fp32(ReduceOp op, DType input_dtype, std::span<const void* const> inputs, std::int64_t elems,
                             float* out);

}  // namespace loom::comm
