// MessageGroup: the collectives of message_world.h. Private to engine/comm.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/comm/call.h"
#include "engine/comm/messages/transport.h"
#include "engine/comm/process_group.h"
#include "engine/comm/slices.h"

namespace loom::comm::messages {

// What was last seen of every rank of the job, for errors. All groups of a rank share one.
class SeenCalls {
 public:
  void note(int rank, const Call& call);
  // describe() of the call, or empty.
  std::string last(int rank) const;

 private:
  mutable std::mutex mutex_;
  std::map<int, std::string> last_;  // guarded by mutex_
};

// What the transport sends beside a call (WireCall::note).
using Note = std::array<std::int64_t, 2>;

class MessageGroup final : public ProcessGroup {
 public:
  // `index` numbers the splits of the job alike on all ranks. The groups of one split share it: they share no ranks.
  MessageGroup(Transport& transport, std::shared_ptr<SeenCalls> seen, int index, int rank, std::vector<int> ranks,
               std::string name);

  void all_gather(Lane lane, std::span<const GatherPart> parts, std::string_view tag) override;
  void reduce_scatter(Lane lane, const void* input, void* output, std::int64_t elems, DType dtype, ReduceOp op,
                      std::string_view tag) override;
  void all_reduce(Lane lane, void* data, std::int64_t elems, DType dtype, ReduceOp op, std::string_view tag) override;
  void all_to_all(Lane lane, std::span<const Outgoing> sends, std::span<const Incoming> receives,
                  std::string_view tag) override;
  void send_recv(Lane lane, int to, Outgoing sent, int from, Incoming received, std::string_view tag) override;
  void broadcast(Lane lane, void* data, std::size_t bytes, int root, std::string_view tag) override;
  void barrier(Lane lane, std::string_view tag) override;
  std::shared_ptr<SharedSegment> share(Lane lane, std::size_t bytes, std::string_view tag) override;

  // The members meet, compare `call` and show each other a note; what each showed, in group order.
  std::vector<Note> exchange_notes(Lane lane, const Call& call, const Note& own);

 private:
  // What a message carries.
  enum Purpose { kCalls, kData, kPurposes };
  // One call under way on one lane: who waits, for what, in which words it fails.
  class Exchange;
  friend class Exchange;

  int world_rank(int member) const { return ranks()[static_cast<std::size_t>(member)]; }
  int peer_at(int turn) const { return (rank() + turn) % size(); }
  // All members but this one, its successor first.
  std::vector<int> peers() const {
    std::vector<int> all;
    for (int turn = 1; turn < size(); ++turn) all.push_back(peer_at(turn));
    return all;
  }
  // At least `bytes` for the call under way on `lane`.
  std::byte* scratch(Lane lane, std::size_t bytes);
  bool on_one_machine() const;

  std::shared_ptr<Batch> send_rows(Exchange& exchange, const void* base, std::span<const Slice> rows, DType dtype);
  void reduce_own_row(Exchange& exchange, const void* base, const Slice& row, DType dtype, ReduceOp op, void* out);
  void all_reduce_small(Lane lane, const Call& call, void* data, std::int64_t elems);

  Transport& transport_;
  const std::shared_ptr<SeenCalls> seen_;
  const int index_;
  const std::string label_;
  std::array<std::shared_ptr<SharedSegment>, Lane::kCount> scratch_;
};

}  // namespace loom::comm::messages
