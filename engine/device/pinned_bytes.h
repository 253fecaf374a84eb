// PinnedBytes: what a rank asked to be page-locked of its host memory, now and at most. A slot of its RankContext.
//
// Counts   every block of HostMemory that is asked for as pinned, granted or not, in dry runs too: what a pool of
//          pinned memory has to hold (offload/host_allocator.h).
// Units    bytes, each block rounded up to kPieceBytes, at which a pool cuts.
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
