// PinnedBytes: the page-locked host memory that a rank requests, now and at its peak. A slot of its RankContext.
//
// Counts   every block of HostMemory that is requested as pinned, granted or not, in dry runs too: the size that a
//          pool of pinned memory needs (offload/host_allocator.h).
// Units    bytes, each block rounded up to kPieceBytes, the unit of a pool.
// Threads  any.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace loom::device {

inline constexpr std::int64_t kPieceBytes = 64;

class PinnedBytes {
 public:
  std::int64_t now() const { return count_->now; }
  std::int64_t peak() const { return count_->peak; }

  // `piece` with its bytes counted until its last owner ends; `piece` may be null (a dry run).
  std::shared_ptr<std::byte> counted(std::shared_ptr<std::byte> piece, std::int64_t bytes);

 private:
  struct Count {
    std::atomic<std::int64_t> now{0};
    std::atomic<std::int64_t> peak{0};
  };
  std::shared_ptr<Count> count_ = std::make_shared<Count>();  // pieces may outlive the rank
};

}  // namespace loom::device
