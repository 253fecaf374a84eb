// Device: the emulated NPU of one rank - memory, streams, and a log of what is issued to it.
//
// Streams  compute runs on the host thread; h2d and d2h copy; rooms that communicate have their own (stream_id.h).
// Pools    memory is taken from the pool of the stream that current_pool() names, as PyTorch does inside
//          `with torch.cuda.stream(s)`; PoolScope changes it for a scope.
// Records  the log keeps the entries that a Recorder requests (recorder.h).
// Dry run  kernels have shapes, accounts and costs, and no bytes: launch() skips the arithmetic.
// Host     host_memory() is the host's memory beside it, for shards, gradients and optimizer state that are kept off
//          the device.
// Profile  DeviceProfile has the figures that the device itself needs; HardwareProfile (profile.h) has the figures for
//          times.
// Threads  the rank's host thread.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "engine/core/rank_context.h"
#include "engine/device/arena.h"
#include "engine/device/host_memory.h"
#include "engine/device/issue_log.h"
#include "engine/device/memory.h"
#include "engine/device/stream.h"

namespace loom::device {

struct DeviceProfile {
  std::string name = "cpu";
  std::int64_t memory_bytes = std::numeric_limits<std::int64_t>::max() / 2;
  // The workspace that the library of matrix products allocates at its first call and never frees.
  std::int64_t matrix_workspace_bytes = 0;
};

struct DeviceOptions {
  DeviceProfile profile{};
  ExecutorKind executor = ExecutorKind::kInline;
  bool dry_run = false;
  AllocatorSettings allocator{};                    // of memory()
  std::optional<AllocatorSettings> compared{};      // of an allocator beside it that gets the same requests
  std::shared_ptr<Arena> arena{};                   // null: one of its own
  std::shared_ptr<HostAllocator> host_allocator{};  // of host_memory(); null: ordinary memory
  std::int64_t rounding_bytes =
      DeviceMemory::kRoundingBytes;  // of a block in the accounts; 1: as PyTorch's on a mesh of CPUs
};

class Device {
 public:
  Device(const DeviceOptions& options, RankContext* context);

  DeviceMemory& memory() { return memory_; }
  HostMemory& host_memory() { return host_memory_; }
  IssueLog& log() { return log_; }
  Stream& stream(StreamId id) {
    std::unique_ptr<Stream>& stream = streams_[id.place()];
    if (stream == nullptr) stream = std::make_unique<Stream>(id, executor_, context_, &log_);
    return *stream;
  }
  bool dry_run() const { return memory_.dry_run(); }
  const DeviceProfile& profile() const { return profile_; }

  // Runs a kernel on the compute stream (now, on the host thread), unless this is a dry run. Errors are thrown.
  template <class F>
  void launch(std::string_view kernel, const Cost& cost, F&& run) {
    WallSlot wall = log_.on() ? log_.add_kernel(StreamId::kCompute, kernel, cost) : nullptr;
    if (cost.unit == Unit::kMatrix) take_matrix_workspace();
    if (dry_run()) return;
    const WallStamp stamp(std::move(wall));
    const IssueLog::Pause pause(log_);
    run();
  }

  // Runs work of the CPU on tensors of the host (now), unless this is a dry run. Errors are thrown.
  template <class F>
  void run_on_host(std::string_view kernel, const Cost& cost, F&& run) {
    WallSlot wall = log_.on() ? log_.add_host_work(kernel, cost) : nullptr;
    if (dry_run()) return;
    const WallStamp stamp(std::move(wall));
    const IssueLog::Pause pause(log_);
    run();
  }

  // Blocks the host until every stream is empty; rethrows the first cause found.
  void synchronize();

  // Gives the rank its device; replaces an earlier one.
  static Device& install(RankContext& context, const DeviceOptions& options);
  // The device of the rank that is current on this thread.
  static Device& current();
  // Null without a rank or without its device.
  static Device* current_or_null();

 private:
  void take_matrix_workspace() {
    if (profile_.matrix_workspace_bytes == 0 || matrix_workspace_ != nullptr) return;
    matrix_workspace_ =
        memory_.allocate(profile_.matrix_workspace_bytes, MemCategory::kTemporary, "workspace of matrix products");
  }

  const DeviceProfile profile_;
  DeviceMemory memory_;
  HostMemory host_memory_;
  IssueLog log_;
  std::shared_ptr<Block> matrix_workspace_;
  const ExecutorKind executor_;
  RankContext* const context_;
  std::array<std::unique_ptr<Stream>, kStreams> streams_;  // by place; null: not used so far
};

}  // namespace loom::device
