// Ranks as processes; begin with run() of run_ranks.h.
//
// Model    Every collective is made of point-to-point messages of a transport (transport.h): first all members exchange
//          their calls, which tells who is missing and who differs, then the bytes move directly between each pair.
//          MPI's own collectives cannot name a missing member or be cancelled, and its reduce-scatter is several times
//          slower.
// Cost     S = full bytes, N ranks; each rank sends and receives, beside one small message a peer:
//          all_gather, reduce_scatter S (N - 1) / N; all_reduce twice that, or S (N - 1) for small S; broadcast S from
//          the root to each; all_to_all and send_recv what is sent, and a send_recv one small message to each of the
//          two peers.
// Memory   reduction scratch: a few pieces a peer, a lane, kept for the group's life. share(): a memory file of the
//          first member, mapped by the others through /proc; null where members are on several machines.
// Bits     the sums of inprocess.h: the same kernel, in rank order.
// Lanes    are parts of the messages' tags: matched apart, as groups are.
// Threads  as ProcessGroup; a World belongs to the rank's host thread, except fail().
#pragma once

#include <memory>

#include "engine/comm/messages/transport.h"
#include "engine/comm/process_group.h"

namespace loom::comm::messages {

class MessageGroup;
class SeenCalls;

class MessageWorld final : public World {
 public:
  explicit MessageWorld(Transport& transport);

  int rank() const override { return transport_.rank(); }
  int size() const override { return transport_.size(); }
  std::shared_ptr<ProcessGroup> split(int color, int key, std::string name, std::span<const int> members) override;
  void fail(const std::string& reason) noexcept override { transport_.fail(reason); }
  // Waits for all ranks to end their work.
  void end();

 private:
  Transport& transport_;
  const std::shared_ptr<SeenCalls> seen_;
  const std::shared_ptr<MessageGroup> everyone_;
  int splits_made_ = 0;  // split 0 is that of everyone_
};

}  // namespace loom::comm::messages
