// Ranks as threads of one process: collectives read the peers' memory directly, with no staging copy.
//
// Model    Members of a group meet on a lane: each shows its call and pointers, all compare, each works for itself from
//          the peers' memory, all meet again before inputs may be reused. Waits spin for a few microseconds, then
//          sleep.
// Cost     S = full bytes, N ranks; bytes read + written by each rank: all_gather (in place) 2 S (N - 1) / N;
//          reduce_scatter S + S / N; all_reduce S + S / N + 2 S (N - 1) / N; all_to_all, send_recv twice what is
//          received, by the receiver.
// Parts    its groups are PeerReductions (peer_reduction.h).
// Failure  The first failure of any rank fails the whole world: a wait under way ends, and every later call fails at
//          once with that cause. A call whose members have all come is finished first, since peers may be reading each
//          other's memory.
// Threads  as ProcessGroup; a World view belongs to one rank's host thread, except fail().
#pragma once

#include <memory>

#include "engine/comm/process_group.h"

namespace loom::comm {

namespace inprocess {
class Job;
}

// What the rank threads of one process share.
class InProcessWorld {
 public:
  InProcessWorld(int ranks, const CommOptions& options);
  ~InProcessWorld();
  InProcessWorld(const InProcessWorld&) = delete;
  InProcessWorld& operator=(const InProcessWorld&) = delete;

  // The view of one rank. Views and their groups may outlive this object.
  std::unique_ptr<World> view(int rank);
  // Says that `rank` will make no further call: whoever waits for it, now or later, gets an error at once.
  void leave(int rank) noexcept;
  // The rank that failed the world first; -1 while none has.
  int first_failed() const;

 private:
  std::shared_ptr<inprocess::Job> job_;
};

}  // namespace loom::comm
