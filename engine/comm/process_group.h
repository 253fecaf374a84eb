// ProcessGroup: the ranks that communicate with one another, and their collectives.
//
// Model     Every member makes the same collectives in the same order on the same Lane; calls on different lanes do not
//           wait for each other (the gather stream and the reduce-scatter stream each have a lane of their own). Every
//           call blocks the calling thread until its result is ready and its inputs may be reused; it is normally the
//           body of a stream item.
// Pairs     send, recv and send_recv are calls of the members that they name, and of no others. On a lane two members
//           meet in the order of their calls, collectives included: a send meets the peer's recv. A send_recv to and
//           from one peer meets a send_recv of that peer.
// Bits      Reductions add in rank order 0..N-1 in fp32 (fp64 for fp64, exact for integers) and round once: threads and
//           processes give the same bits. A maximum is exact, and NaN where one rank has NaN.
// Errors    CommError. Every wait has a deadline (CommOptions::timeout). The text names the collective, its tag, the
//           group, who was waiting for whom and, when a rank failed, which rank failed first and why:
//             [rank 1] all_gather 'layers.3' in group 'dp_shard' (ranks 0,1): rank 0 failed first: <its message>
//             [rank 1] reduce_scatter 'layers.3' in group 'dp_shard' (ranks 0,1): rank 0 did not come within 600 s
//             (it last entered all_gather 'layers.2'); raise --distributed-timeout-minutes or look at rank 0
//           Members that disagree about a collective (kind, bytes, dtype, tag) get one error each that names the
//           difference. Where sender and receiver disagree about the bytes of a message, the error names both ranks and
//           both numbers:
//             [rank 1] all_to_all 'layers.3' in group 'ep' (ranks 0,1): rank 0 sends 24 bytes to rank 1, which expects
//             16; sender and receiver must give the same bytes
// Threads   One thread a lane at a time; several lanes at once.
// Source    inprocess.h (threads as ranks; peers' memory read directly), mpi.h (processes as ranks), simulated.h (one
//           rank of a world of any size).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/dtype.h"

namespace loom::comm {

// An independent order of collectives inside one group. Whoever issues collectives makes the lanes it needs, one a
// stream; every rank must use the same lane for the same call. A lane costs nothing before its first call.
class Lane {
 public:
  static constexpr int kCount = 16;  // lanes of a group

  // Throws InvariantError unless 0 <= id < kCount; does not compile where `id` is a constant outside.
  constexpr explicit Lane(int id) : id_(id) {
    if (id < 0 || id >= kCount) refuse(id);
  }
  constexpr int id() const { return id_; }
  friend constexpr bool operator==(const Lane&, const Lane&) = default;

 private:
  [[noreturn]] static void refuse(int id);

  int id_;
};

// The lane of what the rank's host thread waits for itself.
inline constexpr Lane kHostLane{0};

enum class ReduceKind : std::uint8_t { kSum, kAvg, kPremulSum, kMax };
struct ReduceOp {
  ReduceKind kind = ReduceKind::kSum;
  double factor = 1.0;  // kPremulSum only: each input counts factor times

  static ReduceOp sum() { return {ReduceKind::kSum, 1.0}; }
  static ReduceOp avg() { return {ReduceKind::kAvg, 1.0}; }
  static ReduceOp premul_sum(double factor) { return {ReduceKind::kPremulSum, factor}; }
  static ReduceOp max() { return {ReduceKind::kMax, 1.0}; }
};

struct CommOptions {
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};
};

// One piece of an all-gather: every rank's `bytes` at `shard` land at place_of(rank) on every rank.
// `shard` may be place_of(rank()) (in place).
struct GatherPart {
  const void* shard = nullptr;
  void* full = nullptr;
  std::size_t bytes = 0;
  std::size_t stride = 0;  // from one rank's place to the next one's, at least `bytes`; 0: `bytes`

  std::byte* place_of(int rank) const {
    return static_cast<std::byte*>(full) + static_cast<std::size_t>(rank) * (stride == 0 ? bytes : stride);
  }
};

// What a member sends to one member, and what it receives from one.
struct Outgoing {
  const void* data = nullptr;
  std::size_t bytes = 0;
};
struct Incoming {
  void* data = nullptr;
  std::size_t bytes = 0;
};

// Memory that every member addresses: bytes() long, zeroed, 4096-aligned, the same content for all (one copy exists).
// Lives until the last member lets go of it. Ordering of reads and writes is the callers' (barrier()).
class SharedSegment {
 public:
  virtual ~SharedSegment() = default;
  virtual std::byte* data() const = 0;
  virtual std::size_t bytes() const = 0;
};

class ProcessGroup {
 public:
  // In place of a member: no message goes there, or comes from there.
  static constexpr int kNobody = -1;

  virtual ~ProcessGroup() = default;

  int rank() const { return rank_; }  // within the group
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::vector<int>& ranks() const { return ranks_; }  // members as world ranks, in group order
  const std::string& name() const { return name_; }         // "world", or the axis's name: "dp_shard"

  // `tag` names the work in errors and is compared between members ("layers.3").
  virtual void all_gather(Lane lane, std::span<const GatherPart> parts, std::string_view tag) = 0;
  // input [size() * elems], output [elems]: output = op over ranks of their input's row rank(). output may lie in own
  // input's own row.
  virtual void reduce_scatter(Lane lane, const void* input, void* output, std::int64_t elems, DType dtype, ReduceOp op,
                              std::string_view tag) = 0;
  virtual void all_reduce(Lane lane, void* data, std::int64_t elems, DType dtype, ReduceOp op,
                          std::string_view tag) = 0;
  // sends[i] goes to member i, receives[i] comes from it: size() entries each, any of them empty. What a member sends
  // itself is copied. No part that is received lies in one that is sent, except that a member's own may be both.
  virtual void all_to_all(Lane lane, std::span<const Outgoing> sends, std::span<const Incoming> receives,
                          std::string_view tag) = 0;
  // Sends to one member and receives from one, who may be the same or kNobody, at once: a ring of calls cannot block
  // itself. Both are this member, or neither is.
  virtual void send_recv(Lane lane, int to, Outgoing sent, int from, Incoming received, std::string_view tag) = 0;
  void send(Lane lane, int to, Outgoing sent, std::string_view tag) { send_recv(lane, to, sent, kNobody, {}, tag); }
  void recv(Lane lane, int from, Incoming received, std::string_view tag) {
    send_recv(lane, kNobody, {}, from, received, tag);
  }
  virtual void broadcast(Lane lane, void* data, std::size_t bytes, int root, std::string_view tag) = 0;
  virtual void barrier(Lane lane, std::string_view tag) = 0;

  // Collective: makes (at once on all members) a segment of `bytes`, or returns null on every member where members
  // cannot share memory.
  virtual std::shared_ptr<SharedSegment> share(Lane lane, std::size_t bytes, std::string_view tag) = 0;

 protected:
  ProcessGroup(int rank, std::vector<int> ranks, std::string name)
      : rank_(rank), ranks_(std::move(ranks)), name_(std::move(name)) {}

 private:
  const int rank_;
  const std::vector<int> ranks_;
  const std::string name_;
};

// One rank's view of the job: makes groups.
class World {
 public:
  // The colour of a rank that joins no group of a split.
  static constexpr int kNoColor = -1;

  virtual ~World() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Collective over the world: ranks of one `color` (>= 0) become a group, ordered by `key`, then by world rank. Null
  // for kNoColor. One exchange makes all groups; every rank makes its splits in the same order.
  // `members`: the group this rank expects, in order; empty where it expects none in particular. A group that comes out
  // different is a CommError on every rank that expected another. A simulated world has no peers and needs them.
  virtual std::shared_ptr<ProcessGroup> split(int color, int key, std::string name, std::span<const int> members) = 0;
  // All ranks as one group. Collective.
  std::shared_ptr<ProcessGroup> everyone(std::string name = "world");

  // Tells every other rank that this one has failed, so that their waits end with `reason`. The first failure wins.
  // Never blocks, never throws.
  virtual void fail(const std::string& reason) noexcept = 0;
};

}  // namespace loom::comm
