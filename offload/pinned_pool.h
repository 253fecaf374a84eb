// PinnedPool: the pinned host memory of one rank in one piece, as large as the plan of its step says.
//
// Limit    what the threads of a process may lock together (ulimit -l) is shared by its ranks in equal parts: the first
//          bytes of the pool, as many as a part, are locked, the rest is pageable. Which, does not depend on who comes
//          first. That not all is locked is said once a process, with bytes asked, bytes pinned and the limit.
// Pieces   the lowest free place that is large enough, at 64 bytes; free neighbours are joined.
// Pages    on the node that is asked for; those that are locked are looked at afterwards (move_pages), and where many
//          are elsewhere, that is said once. What the pool got is in the log at level debug.
// Threads  pieces are asked for by the rank's host thread and may end on any; the pool lives as long as its last piece.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "offload/host_memory.h"

namespace loom::offload {

// What one of `ranks` ranks of a process may lock; nothing: no limit.
std::optional<std::size_t> lock_share(int ranks, HostMemoryCalls& calls);
// Says once that of `asked` bytes of a rank only `pinned` are pinned.
void say_partly_pinned(std::size_t asked, std::size_t pinned, int ranks, HostMemoryCalls& calls);

class PinnedPool : public std::enable_shared_from_this<PinnedPool> {
 public:
  // `bytes` > 0. `calls` outlives the pool.
  PinnedPool(std::size_t bytes, std::optional<int> node, int ranks_of_process, HostMemoryCalls& calls);

  // Null where no free place is large enough; `bytes` > 0.
  std::shared_ptr<std::byte> take(std::size_t bytes);

  std::size_t bytes() const { return memory_.bytes(); }
  std::size_t pinned_bytes() const { return pinned_bytes_; }
  std::optional<int> node() const { return memory_.node(); }

 private:
  void pin(int ranks_of_process);
  void look_at_pages();
  void give_back(std::size_t begin, std::size_t bytes);

  HostMemoryCalls& calls_;
  HostBuffer memory_;
  std::size_t pinned_bytes_ = 0;
  std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_;  // bytes by where they begin
};

}  // namespace loom::offload
