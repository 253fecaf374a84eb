#include "engine/comm/call.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <numeric>
#include <utility>

#include "engine/core/digest.h"
#include "engine/core/error.h"
#include "engine/kernels/reduce.h"

namespace loom::comm {
namespace {

std::string_view kind_name(CallKind kind) {
  switch (kind) {
    case CallKind::kAllGather:
      return "all_gather";
    case CallKind::kReduceScatter:
      return "reduce_scatter";
    case CallKind::kAllReduce:
      return "all_reduce";
    case CallKind::kBroadcast:
      return "broadcast";
    case CallKind::kBarrier:
      return "barrier";
    case CallKind::kShare:
      return "share";
    case CallKind::kSplit:
      return "making of groups";
    case CallKind::kAllToAll:
      return "all_to_all";
    case CallKind::kSendRecv:
      return "send_recv";
  }
  return "call";
}

std::string op_name(ReduceOp op) {
  switch (op.kind) {
    case ReduceKind::kSum:
      return "sum";
    case ReduceKind::kAvg:
      return "avg";
    case ReduceKind::kPremulSum:
      return fmt::format("premul_sum({})", op.factor);
    case ReduceKind::kMax:
      return "max";
  }
  return "an unknown operation";
}

bool same_op(ReduceOp a, ReduceOp b) {
  return a.kind == b.kind && (a.kind != ReduceKind::kPremulSum || a.factor == b.factor);
}

// The factor of a sum of this many inputs.
double sum_factor(ReduceOp op, std::size_t inputs) {
  if (op.kind == ReduceKind::kAvg) return 1.0 / static_cast<double>(inputs);
  return op.kind == ReduceKind::kPremulSum ? op.factor : 1.0;
}

std::string last_entered(const Missing& missing) {
  return missing.last_entered.empty() ? "it has entered no collective" : "it last entered " + missing.last_entered;
}

// Whether `call` has a message to, and from, `peer`.
bool sends_to(const Call& call, int peer) { return call.kind == CallKind::kAllToAll || call.to == peer; }
bool receives_from(const Call& call, int peer) { return call.kind == CallKind::kAllToAll || call.from == peer; }

Call bare(CallKind kind, std::string_view tag) {
  Call call;
  call.kind = kind;
  call.tag = tag;
  return call;
}

std::string duration(std::chrono::milliseconds time) {
  return time.count() % 1000 == 0 ? fmt::format("{} s", time.count() / 1000) : fmt::format("{} ms", time.count());
}

}  // namespace

void Lane::refuse(int id) { raise<InvariantError>("lane is {}, a group has lanes 0 to {}", id, kCount - 1); }

std::shared_ptr<ProcessGroup> World::everyone(std::string name) {
  std::vector<int> ranks(static_cast<std::size_t>(size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return split(0, rank(), std::move(name), ranks);
}

Call Call::all_gather(std::span<const GatherPart> parts, std::string_view tag) {
  Call call = bare(CallKind::kAllGather, tag);
  call.layout = kDigestSeed;
  for (const GatherPart& part : parts) {
    call.bytes += part.bytes;
    call.layout = digest(&part.bytes, sizeof part.bytes, call.layout);
  }
  return call;
}

Call Call::reduction(CallKind kind, std::int64_t elems, DType dtype, ReduceOp op, std::string_view tag) {
  Call call = bare(kind, tag);
  call.bytes = static_cast<std::uint64_t>(elems) * element_bytes(dtype);
  call.dtype = dtype;
  call.op = op;
  return call;
}

Call Call::reduction(std::span<const ReducePart> parts, DType input_dtype, DType dtype, ReduceOp op,
                     std::string_view tag) {
  std::int64_t elems = 0;
  std::uint64_t layout = digest(&input_dtype, sizeof input_dtype, kDigestSeed);
  for (const ReducePart& part : parts) {
    elems += part.row_elems;
    layout = digest(&part.row_elems, sizeof part.row_elems, digest(&part.elems, sizeof part.elems, layout));
  }
  Call call = reduction(CallKind::kReduceScatter, elems, dtype, op, tag);
  call.layout = layout;
  return call;
}

Call Call::broadcast(std::size_t bytes, int root, std::string_view tag) {
  Call call = bare(CallKind::kBroadcast, tag);
  call.bytes = bytes;
  call.root = root;
  return call;
}

Call Call::all_to_all(std::string_view tag) { return bare(CallKind::kAllToAll, tag); }

Call Call::send_recv(int to, std::size_t sent, int from, std::size_t expected, std::string_view tag) {
  Call call = bare(CallKind::kSendRecv, tag);
  call.sent = sent;
  call.expected = expected;
  call.to = to;
  call.from = from;
  return call;
}

Call Call::share(std::size_t bytes, std::string_view tag) {
  Call call = bare(CallKind::kShare, tag);
  call.bytes = bytes;
  return call;
}

Call Call::barrier(std::string_view tag) { return bare(CallKind::kBarrier, tag); }

Call Call::split(std::string_view name) { return bare(CallKind::kSplit, name); }

std::vector<int> members_of_split(std::span<const SplitChoice> choices, int rank) {
  const int color = choices[static_cast<std::size_t>(rank)].color;
  require(color >= World::kNoColor, "rank {} gives a split the color {}, expected 0 or more, or kNoColor", rank, color);
  std::vector<int> members;
  if (color == World::kNoColor) return members;
  for (std::size_t r = 0; r < choices.size(); ++r) {
    if (choices[r].color == color) members.push_back(static_cast<int>(r));
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return choices[static_cast<std::size_t>(a)].key < choices[static_cast<std::size_t>(b)].key;
  });
  return members;
}

std::optional<std::string> unexpected_members(int rank, std::span<const int> expected, std::span<const int> members) {
  if (expected.empty() || std::equal(expected.begin(), expected.end(), members.begin(), members.end())) {
    return std::nullopt;
  }
  return fmt::format("rank {} expects ranks {} in its group, but finds {}; give all ranks the same axes", rank,
                     list_ranks(expected), list_ranks(members));
}

WireCall to_wire(const Call& call) {
  WireCall wire;
  const std::size_t kept = std::min(call.tag.size(), wire.tag.size() - 1);
  std::memcpy(wire.tag.data(), call.tag.data(), kept);
  wire.tag_fingerprint = digest(call.tag.data(), call.tag.size());
  wire.bytes = call.bytes;
  wire.layout = call.layout;
  wire.factor = call.op.factor;
  wire.sent = call.sent;
  wire.expected = call.expected;
  wire.root = call.root;
  wire.to = call.to;
  wire.from = call.from;
  wire.kind = call.kind;
  wire.dtype = call.dtype;
  wire.reduce = call.op.kind;
  return wire;
}

Call from_wire(const WireCall& wire) {
  Call call = bare(wire.kind, wire.tag.data());
  if (digest(call.tag.data(), call.tag.size()) != wire.tag_fingerprint) {
    call.tag += fmt::format("...#{:016x}", wire.tag_fingerprint);
  }
  call.bytes = wire.bytes;
  call.layout = wire.layout;
  call.dtype = wire.dtype;
  call.op = {wire.reduce, wire.factor};
  call.root = wire.root;
  call.sent = wire.sent;
  call.expected = wire.expected;
  call.to = wire.to;
  call.from = wire.from;
  return call;
}

std::string list_ranks(std::span<const int> ranks) {
  constexpr std::size_t kShown = 16;
  if (ranks.size() <= kShown) return fmt::format("{}", fmt::join(ranks, ","));
  return fmt::format("{},...,{}; {} in all", fmt::join(ranks.first(3), ","), ranks.back(), ranks.size());
}

std::string group_label(std::string_view name, std::span<const int> ranks) {
  return fmt::format("group '{}' ({} {})", name, ranks.size() == 1 ? "rank" : "ranks", list_ranks(ranks));
}

std::string describe(const Call& call) {
  if (call.kind != CallKind::kSendRecv) return fmt::format("{} '{}'", kind_name(call.kind), call.tag);
  if (call.from == ProcessGroup::kNobody) return fmt::format("send '{}' to rank {}", call.tag, call.to);
  if (call.to == ProcessGroup::kNobody) return fmt::format("recv '{}' from rank {}", call.tag, call.from);
  return fmt::format("send_recv '{}' to rank {} and from rank {}", call.tag, call.to, call.from);
}

std::string where(int rank, const Call& call, std::string_view group_label) {
  return fmt::format("[rank {}] {} in {}: ", rank, describe(call), group_label);
}

std::optional<std::string> difference(int my_rank, const Call& mine, int their_rank, const Call& theirs) {
  const auto differ = [&](const auto& my_value, const auto& their_value) {
    return fmt::format("rank {} asks for {}, rank {} for {}; all members must make the same calls in the same order",
                       my_rank, my_value, their_rank, their_value);
  };
  const bool sends = sends_to(mine, their_rank), receives = receives_from(mine, their_rank);
  if (mine.kind != theirs.kind || mine.tag != theirs.tag || sends != receives_from(theirs, my_rank) ||
      receives != sends_to(theirs, my_rank)) {
    return differ(describe(mine), describe(theirs));
  }
  if (sends && mine.sent != theirs.expected) {
    return count_difference(my_rank, mine.sent, their_rank, theirs.expected);
  }
  if (receives && theirs.sent != mine.expected) {
    return count_difference(their_rank, theirs.sent, my_rank, mine.expected);
  }
  if (mine.dtype != theirs.dtype) return differ(name(mine.dtype), name(theirs.dtype));
  if (mine.bytes != theirs.bytes) {
    return differ(fmt::format("{} bytes", mine.bytes), fmt::format("{} bytes", theirs.bytes));
  }
  if (mine.layout != theirs.layout) {
    return fmt::format("ranks {} and {} cut the {} bytes into different parts; all members must give the same parts",
                       my_rank, their_rank, mine.bytes);
  }
  if (!same_op(mine.op, theirs.op)) return differ(op_name(mine.op), op_name(theirs.op));
  if (mine.root != theirs.root) {
    return differ(fmt::format("root {}", mine.root), fmt::format("root {}", theirs.root));
  }
  return std::nullopt;
}

std::string count_difference(int sender, std::uint64_t sent, int receiver, std::uint64_t expected) {
  return fmt::format(
      "rank {} sends {} bytes to rank {}, which expects {}; sender and receiver must give the same bytes", sender, sent,
      receiver, expected);
}

std::string failed_first(int rank, std::string_view reason) {
  return fmt::format("rank {} failed first: {}", rank, reason);
}

std::string did_not_come(std::span<const Missing> missing, std::chrono::milliseconds timeout) {
  if (missing.size() == 1) {
    return fmt::format(
        "rank {0} did not come within {1} ({2}); raise --distributed-timeout-minutes or look at rank {0}",
        missing[0].rank, duration(timeout), last_entered(missing[0]));
  }
  std::vector<int> ranks;
  std::vector<std::string> lasts;
  for (const Missing& peer : missing) {
    ranks.push_back(peer.rank);
    lasts.push_back(fmt::format("rank {}: {}", peer.rank, last_entered(peer)));
  }
  return fmt::format(
      "ranks {0} did not come within {1} ({2}); raise --distributed-timeout-minutes or look at ranks {0}",
      list_ranks(ranks), duration(timeout), fmt::join(lasts, "; "));
}

std::string has_ended(const Missing& missing) {
  return fmt::format("rank {0} has ended without it ({1}); all members must make the same calls in the same order",
                     missing.rank, last_entered(missing));
}

void check_parts(std::span<const Outgoing> sends, std::span<const Incoming> receives, int rank, int size,
                 std::string_view tag) {
  const auto members = static_cast<std::size_t>(size);
  require(sends.size() == members && receives.size() == members,
          "all_to_all '{}': {} parts to send and {} to receive, the group has {} members", tag, sends.size(),
          receives.size(), size);
  const auto own = static_cast<std::size_t>(rank);
  require(sends[own].bytes == receives[own].bytes, "all_to_all '{}': member {} sends itself {} bytes and expects {}",
          tag, rank, sends[own].bytes, receives[own].bytes);
}

void check_peers(int to, Outgoing sent, int from, Incoming received, int rank, int size, std::string_view tag) {
  const auto is_peer = [size](int peer) { return peer >= ProcessGroup::kNobody && peer < size; };
  require(is_peer(to) && is_peer(from), "send_recv '{}': to member {} and from {}, the group has {} members", tag, to,
          from, size);
  require((to == rank) == (from == rank), "send_recv '{}': member {} sends to {} and receives from {}", tag, rank, to,
          from);
  require(to != rank || sent.bytes == received.bytes, "send_recv '{}': member {} sends itself {} bytes and expects {}",
          tag, rank, sent.bytes, received.bytes);
}

void reduce_in_order(ReduceOp op, DType dtype, std::span<const void* const> inputs, std::int64_t elems, void* out) {
  if (op.kind == ReduceKind::kMax) return kernels::max_of(dtype, inputs, elems, out);
  kernels::sum_in_order(dtype, inputs, sum_factor(op, inputs.size()), elems, out);
}

void reduce_in_order_as_fp32(ReduceOp op, DType input_dtype, std::span<const void* const> inputs, std::int64_t elems,
                             float* out) {
  require(op.kind != ReduceKind::kMax, "a maximum of {} in fp32; give it as {}", name(input_dtype), name(input_dtype));
  kernels::sum_in_order_as_fp32(input_dtype, inputs, sum_factor(op, inputs.size()), elems, out);
}

}  // namespace loom::comm
