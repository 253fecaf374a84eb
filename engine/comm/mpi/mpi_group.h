// MpiGroup: the collectives of mpi.h. Private to engine/comm.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/comm/call.h"
#include "engine/comm/mpi/mpi_transport.h"
#include "engine/comm/process_group.h"
#include "engine/comm/slices.h"

namespace loom::comm::mpi {

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

class MpiGroup final : public ProcessGroup {
 public:
  // `index` numbers the groups of the job alike on all ranks.
  MpiGroup(std::shared_ptr<MpiTransport> transport, std::shared_ptr<SeenCalls> seen, int index, int rank,
           std::vector<int> ranks, std::string name);

  void all_gather(Channel channel, std::span<const GatherPart> parts, std::string_view tag) override;
  void reduce_scatter(Channel channel, const void* input, void* output, std::int64_t elems, DType dtype, ReduceOp op,
                      std::string_view tag) override;
  void all_reduce(Channel channel, void* data, std::int64_t elems, DType dtype, ReduceOp op,
                  std::string_view tag) override;
  void broadcast(Channel channel, void* data, std::size_t bytes, int root, std::string_view tag) override;
  void barrier(Channel channel, std::string_view tag) override;
  std::shared_ptr<SharedSegment> share(Channel channel, std::size_t bytes, std::string_view tag) override;

  // The members meet and compare `call`, nothing else.
  void agree(Channel channel, const Call& call);

 private:
  // One call under way on one channel: who waits, for what, in which words it fails.
  class Exchange;
  friend class Exchange;

  int world_rank(int member) const { return ranks()[static_cast<std::size_t>(member)]; }
  int peer_at(int turn) const { return (rank() + turn) % size(); }
  // At least `bytes` for the call under way on `channel`.
  std::byte* scratch(Channel channel, std::size_t bytes);
  bool on_one_machine() const;

  std::shared_ptr<Batch> send_rows(Exchange& exchange, const void* base, std::span<const Slice> rows, DType dtype);
  void sum_own_row(Exchange& exchange, const void* base, const Slice& row, DType dtype, ReduceOp op, void* out);
  void all_reduce_small(Channel channel, const Call& call, void* data, std::int64_t elems);

  const std::shared_ptr<MpiTransport> transport_;
  const std::shared_ptr<SeenCalls> seen_;
  const int index_;
  const std::string label_;
  std::array<std::shared_ptr<SharedSegment>, kChannels> scratch_;
};

}  // namespace loom::comm::mpi
