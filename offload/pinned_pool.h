// PinnedPool: the pinned host memory of one rank in one piece, of the size in its step's plan.
//
// Limit    the bytes that the threads of a process may lock together (ulimit -l) are divided equally by its ranks: the
//          first bytes of the pool, up to this share, are locked, the rest is pageable, independently of the order
//          of requests. Partial locking is reported once per process, with requested bytes, pinned bytes and the limit.
// Pieces   the lowest free place that is large enough, at 64 bytes; free neighbours are joined.
// Pages    on the requested node; locked pages are checked afterwards (move_pages), and if many
//          are elsewhere, that is reported once. The log at level debug has the pool's placement.
// Threads  the rank's host thread requests pieces, and they may end on any; the pool lives as long as its last piece.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "offload/host_memory.h"

namespace loom::offload {

// The bytes that one of `ranks` ranks of a process may lock; none: no limit.
std::optional<std::size_t> lock_share(int ranks, HostMemoryCalls& calls);
// Reports once that only `pinned` of the `asked` bytes of a rank are pinned.
void say_partly_pinned(std::size_t asked, std::size_t pinned, int ranks, HostMemoryCalls& calls);

class PinnedPool : public std::enable_shared_from_this<PinnedPool> {
 public:
  // `bytes` > 0. `calls` outlives the pool.
  PinnedPool(std::size_t bytes, std::optional<int> node, int ranks_of_process, HostMemoryCalls& calls);

  // Null if no free place is large enough; `bytes` > 0.
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
  std::map<std::size_t, std::size_t> free_;  // bytes by start
};

}  // namespace loom::offload
