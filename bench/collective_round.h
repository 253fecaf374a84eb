// One collective and its limit, timed in turns by all ranks of a group: used by the benchmarks of threads and of
// processes.
//
// Limit    memcpy of as many bytes as a rank's result needs, by all ranks at once, from private to private memory. S =
//          full bytes, N ranks: S for an all-gather from apart, for an all-to-all and a ring of messages (a rank sends
//          and receives S) and for a reduce-scatter (which reads S and writes S / N), S (N - 1) / N in place.
// Parts    of an all-to-all: equal; or a quarter of that for the next member, and what it lacks for the member itself.
// Time     from the first rank's start to the last rank's end, for both: threads that share a core are slow alike.
// Ratio    best time of the limit / best time of the collective; 1 is memcpy, above 1 is better. The ratio of the
//          medians stands beside it: the two agree on an idle machine.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "engine/comm/process_group.h"

namespace loom::bench {

enum class Collective : int {
  kAllGather,
  kAllGatherInPlace,
  kReduceScatterF32,
  kReduceScatterBF16,
  kAllToAll,
  kAllToAllUnequal,
  kSendRecv
};
inline constexpr int kCollectives = 7;
std::string name(Collective collective);
// How many rounds settle the best time and stay within a second or two.
inline int rounds_for(std::size_t full_bytes) { return full_bytes <= (std::size_t{1} << 20) ? 200 : 30; }

// On huge pages where there are any, like the engine's arenas; touched.
class Memory {
 public:
  explicit Memory(std::size_t bytes);
  std::byte* data() const { return segment_->data(); }
  std::size_t size() const { return segment_->bytes(); }

 private:
  std::shared_ptr<comm::SharedSegment> segment_;
};

class CollectiveRound {
 public:
  // Collective over `group`. Runs once and throws where the result is wrong. full_bytes is S.
  CollectiveRound(comm::ProcessGroup& group, Collective collective, std::size_t full_bytes);

  // All ranks: the limit, then the collective. Returns the time of the collective.
  double run();
  // Of all rounds so far.
  double ratio() const;
  double ratio_of_medians() const;

 private:
  // From a barrier on: the time in which all ranks do `work`.
  template <class Work>
  double seconds_of_all(const Work& work);
  void communicate();
  void check() const;
  void check_sources() const;
  std::size_t limit_bytes() const;
  // Bytes from one member to another in an all-to-all.
  std::size_t part_bytes(int from, int to) const;
  // Where the part of member `peer` begins among those that this one sends, or receives.
  std::size_t part_offset(int peer, bool sent) const;

  comm::ProcessGroup& group_;
  const Collective collective_;
  const std::size_t full_bytes_;
  const std::size_t shard_bytes_;
  const Memory input_;
  const Memory output_;
  const Memory limit_from_;
  const Memory limit_to_;
  std::vector<double> limit_seconds_;
  std::vector<double> collective_seconds_;
};

}  // namespace loom::bench
