#include "sharding/custom_comm.h"

#include <array>
#include <fmt/format.h>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/rounding.h"
#include "sharding/lanes.h"

namespace loom::sharding {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kUses = 3;
constexpr std::size_t kTurns = 2;  // a buffer may be held while the next one of its use is filled

std::size_t aligned(std::size_t bytes) { return round_up(bytes, kAlignment); }

void check(const CommBuffer& buffer, std::size_t bytes, const std::string& what) {
  const std::size_t given = buffer.memory == nullptr ? 0 : buffer.bytes;
  if (given < bytes) {
    raise<DeviceError>(
        "{}: allocate() of its custom communication was called for {} bytes and returned {}; return at least as "
        "many as requested",
        what, bytes, given);
  }
  const std::size_t odd = reinterpret_cast<std::uintptr_t>(buffer.memory.get()) % kAlignment;
  if (odd != 0) {
    raise<DeviceError>(
        "{}: allocate() of its custom communication gave memory {} bytes behind an address that is a "
        "multiple of {}; align it to {}",
        what, odd, kAlignment, kAlignment);
  }
}

// This rank's part of a segment, cut into kTurns places of each use.
class GroupMemory {
 public:
  GroupMemory(std::shared_ptr<comm::SharedSegment> segment, int rank, const CommBufferSizes& sizes)
      : segment_(std::move(segment)), begin_(static_cast<std::size_t>(rank) * bytes_per_rank(sizes)) {
    std::size_t at = begin_;
    for (std::size_t use = 0; use < kUses; ++use) {
      places_[use] = {at, size_of(sizes, use), 0};
      at += kTurns * places_[use].bytes;
    }
  }

  static std::size_t bytes_per_rank(const CommBufferSizes& sizes) {
    std::size_t bytes = 0;
    for (std::size_t use = 0; use < kUses; ++use) bytes += kTurns * size_of(sizes, use);
    return bytes;
  }

  CommBuffer take(CommBufferUse use) {
    Places& places = places_[static_cast<std::size_t>(use)];
    std::byte* data = segment_->data() + places.begin + places.turn * places.bytes;
    places.turn = (places.turn + 1) % kTurns;
    return {std::shared_ptr<std::byte>(segment_, data), places.bytes};
  }

 private:
  struct Places {
    std::size_t begin = 0;
    std::size_t bytes = 0;  // of one
    std::size_t turn = 0;
  };

  static std::size_t size_of(const CommBufferSizes& sizes, std::size_t use) {
    return aligned(std::array{sizes.gather_output, sizes.reduce_input, sizes.reduce_output}[use]);
  }

  const std::shared_ptr<comm::SharedSegment> segment_;
  const std::size_t begin_;
  std::array<Places, kUses> places_;
};

class GroupAllGather final : public AllGather {
 public:
  explicit GroupAllGather(std::shared_ptr<GroupMemory> memory) : memory_(std::move(memory)) {}
  CommBuffer allocate(CommBufferUse use, std::size_t) override { return memory_->take(use); }
  void operator()(void* output, const void* input, std::size_t bytes, comm::ProcessGroup& group,
                  std::string_view tag) override {
    const comm::GatherPart part{input, output, bytes};
    group.all_gather(kGatherLane, {&part, 1}, tag);
  }

 private:
  const std::shared_ptr<GroupMemory> memory_;
};

class GroupReduceScatter final : public ReduceScatter {
 public:
  explicit GroupReduceScatter(std::shared_ptr<GroupMemory> memory) : memory_(std::move(memory)) {}
  CommBuffer allocate(CommBufferUse use, std::size_t) override { return memory_->take(use); }
  void operator()(void* output, const void* input, std::int64_t elems, DType dtype, comm::ReduceOp op,
                  comm::ProcessGroup& group, std::string_view tag) override {
    group.reduce_scatter(kReduceScatterLane, input, output, elems, dtype, op, tag);
  }

 private:
  const std::shared_ptr<GroupMemory> memory_;
};

}  // namespace

Tensor comm_buffer(Comm* comm, CommBufferUse use, std::int64_t elems, DType dtype, device::MemCategory category,
                   const std::string& what) {
  device::Device& device = device::Device::current();
  if (comm == nullptr || device.dry_run()) return Tensor::empty({elems}, dtype, category, what);
  const std::int64_t bytes = elems * element_bytes(dtype);
  CommBuffer buffer = comm->allocate(use, static_cast<std::size_t>(bytes));
  check(buffer, static_cast<std::size_t>(bytes), what);
  auto storage = std::make_shared<Storage>(Place::kDevice, &device, bytes, category, what);
  storage->adopt(device.memory().adopt(std::move(buffer.memory), bytes, category, what));
  return {std::move(storage), 0, {elems}, dtype};
}

GroupComm comm_in_group_memory(comm::ProcessGroup& group, const CommBufferSizes& sizes, const std::string& path) {
  const std::size_t bytes = static_cast<std::size_t>(group.size()) * GroupMemory::bytes_per_rank(sizes);
  auto segment = group.share(comm::kHostLane, bytes, "buffers of '" + path + "'");
  if (segment == nullptr) {
    config_error(
        "the buffers of group '{}' are to come from process group '{}' (ranks {}), which has no allocator: its members "
        "share no memory; leave set_allocate_memory_from_process_group_for_comm off",
        path, group.name(), fmt::join(group.ranks(), ","));
  }
  const auto memory = std::make_shared<GroupMemory>(std::move(segment), group.rank(), sizes);
  return {std::make_shared<GroupAllGather>(memory), std::make_shared<GroupReduceScatter>(memory)};
}

}  // namespace loom::sharding
