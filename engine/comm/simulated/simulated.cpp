#include "engine/comm/simulated/simulated.h"

#include <algorithm>
#include <cstring>

#include "engine/comm/call.h"
#include "engine/core/error.h"
#include "engine/kernels/reduce.h"

namespace loom::comm {
namespace {

class SimulatedGroup final : public ProcessGroup {
 public:
  SimulatedGroup(int rank, std::vector<int> ranks, std::string name)
      : ProcessGroup(rank, std::move(ranks), std::move(name)) {}

  void all_gather(Lane, std::span<const GatherPart> parts, std::string_view) override {
    for (const GatherPart& part : parts) {
      if (part.shard == nullptr || part.full == nullptr) continue;
      auto* full = static_cast<std::byte*>(part.full);
      for (int peer = 0; peer < size(); ++peer) {
        std::memmove(full + static_cast<std::size_t>(peer) * part.bytes, part.shard, part.bytes);
      }
    }
  }

  void reduce_scatter(Lane, const void* input, void* output, std::int64_t elems, DType dtype, ReduceOp op,
                      std::string_view) override {
    if (input == nullptr || output == nullptr) return;
    const auto offset = (rank() * elems) * element_bytes(dtype);
    sum_alike(static_cast<const std::byte*>(input) + offset, output, elems, dtype, op);
  }

  void all_reduce(Lane, void* data, std::int64_t elems, DType dtype, ReduceOp op, std::string_view) override {
    if (data != nullptr) sum_alike(data, data, elems, dtype, op);
  }

  // Another root's rows stay as they are: nobody knows them.
  void gather(Lane, std::span<const RootedPart> parts, std::string_view tag) override {
    check_roots(Call::rooted(CallKind::kGather, parts, tag), parts, size());
    for (const RootedPart& part : parts) {
      if (part.root != rank() || part.shard == nullptr || part.full == nullptr) continue;
      for (int peer = 0; peer < size(); ++peer) {
        std::memmove(static_cast<std::byte*>(part.full) + static_cast<std::size_t>(peer) * part.bytes, part.shard,
                     part.bytes);
      }
    }
  }
  void scatter(Lane, std::span<const RootedPart> parts, std::string_view tag) override {
    check_roots(Call::rooted(CallKind::kScatter, parts, tag), parts, size());
    for (const RootedPart& part : parts) {
      if (part.root != rank() || part.shard == nullptr || part.full == nullptr) continue;
      std::memmove(part.shard, static_cast<const std::byte*>(part.full) + static_cast<std::size_t>(rank()) * part.bytes,
                   part.bytes);
    }
  }
  void broadcast(Lane, void*, std::size_t, int root, std::string_view tag) override {
    require(root >= 0 && root < size(), "broadcast '{}': root is {}, the group has {} members", tag, root, size());
  }
  void barrier(Lane, std::string_view) override {}
  std::shared_ptr<SharedSegment> share(Lane, std::size_t, std::string_view) override { return nullptr; }

 private:
  void sum_alike(const void* input, void* output, std::int64_t elems, DType dtype, ReduceOp op) const {
    const std::vector<const void*> inputs(static_cast<std::size_t>(size()), input);
    kernels::sum_in_order(dtype, inputs, sum_factor(op, size()), elems, output);
  }
};

class SimulatedWorld final : public World {
 public:
  SimulatedWorld(int rank, int size) : rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::shared_ptr<ProcessGroup> split(int color, int, std::string name, std::span<const int> members) override {
    if (color == kNoColor) return nullptr;
    const auto own = std::find(members.begin(), members.end(), rank_);
    require(own != members.end(),
            "a simulated world cannot ask who is in group '{}'; give its members, rank {} among them", name, rank_);
    return std::make_shared<SimulatedGroup>(static_cast<int>(own - members.begin()),
                                            std::vector<int>(members.begin(), members.end()), std::move(name));
  }

  void fail(const std::string&) noexcept override {}

 private:
  const int rank_;
  const int size_;
};

}  // namespace

std::unique_ptr<World> make_simulated_world(int rank, int size) {
  require(rank >= 0 && rank < size, "rank is {}, the simulated world has {} ranks", rank, size);
  return std::make_unique<SimulatedWorld>(rank, size);
}

}  // namespace loom::comm
