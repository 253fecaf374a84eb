#include "engine/comm/simulated/simulated.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/comm/call.h"
#include "engine/core/error.h"

namespace loom::comm {
namespace {

class SimulatedGroup final : public ProcessGroup {
 public:
  SimulatedGroup(int rank, std::vector<int> ranks, std::string name, std::shared_ptr<UsedGroups> used)
      : ProcessGroup(rank, std::move(ranks), std::move(name)), used_(std::move(used)) {}

  void all_gather(Lane, std::span<const GatherPart> parts, std::string_view) override {
    note_use();
    for (const GatherPart& part : parts) {
      if (part.shard == nullptr || part.full == nullptr) continue;
      for (int peer = 0; peer < size(); ++peer) std::memmove(part.place_of(peer), part.shard, part.bytes);
    }
  }

  void reduce_scatter(Lane, const void* input, void* output, std::int64_t elems, DType dtype, ReduceOp op,
                      std::string_view) override {
    note_use();
    if (input == nullptr || output == nullptr) return;
    const auto offset = (rank() * elems) * element_bytes(dtype);
    reduce_alike(static_cast<const std::byte*>(input) + offset, output, elems, dtype, op);
  }

  void all_reduce(Lane, void* data, std::int64_t elems, DType dtype, ReduceOp op, std::string_view) override {
    note_use();
    if (data != nullptr) reduce_alike(data, data, elems, dtype, op);
  }

  // A peer sends this rank what this rank sends itself. A part of other bytes stays as it is: nobody knows it.
  void all_to_all(Lane, std::span<const Outgoing> sends, std::span<const Incoming> receives,
                  std::string_view tag) override {
    note_use();
    check_parts(sends, receives, rank(), size(), tag);
    for (const Incoming& received : receives) take_alike(sends[static_cast<std::size_t>(rank())], received);
  }
  void send_recv(Lane, int to, Outgoing sent, int from, Incoming received, std::string_view tag) override {
    note_use();
    check_peers(to, sent, from, received, rank(), size(), tag);
    if (from != kNobody) take_alike(sent, received);
  }
  void broadcast(Lane, void*, std::size_t, int root, std::string_view tag) override {
    note_use();
    require(root >= 0 && root < size(), "broadcast '{}': root is {}, the group has {} members", tag, root, size());
  }
  void barrier(Lane, std::string_view) override { note_use(); }
  std::shared_ptr<SharedSegment> share(Lane, std::size_t, std::string_view) override { return nullptr; }

 private:
  void note_use() {
    if (used_ != nullptr) std::exchange(used_, nullptr)->add(name(), ranks());
  }
  static void take_alike(Outgoing sent, Incoming received) {
    if (sent.data == nullptr || received.data == nullptr || sent.bytes != received.bytes) return;
    std::memmove(received.data, sent.data, sent.bytes);
  }
  void reduce_alike(const void* input, void* output, std::int64_t elems, DType dtype, ReduceOp op) const {
    const std::vector<const void*> inputs(static_cast<std::size_t>(size()), input);
    reduce_in_order(op, dtype, inputs, elems, output);
  }

  std::shared_ptr<UsedGroups> used_;  // null after the first call
};

class SimulatedWorld final : public World {
 public:
  SimulatedWorld(int rank, int size, std::shared_ptr<UsedGroups> used)
      : rank_(rank), size_(size), used_(std::move(used)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::shared_ptr<ProcessGroup> split(int color, int, std::string name, std::span<const int> members) override {
    if (color == kNoColor) return nullptr;
    const auto own = std::find(members.begin(), members.end(), rank_);
    require(own != members.end(),
            "a simulated world cannot ask who is in group '{}'; give its members, rank {} among them", name, rank_);
    return std::make_shared<SimulatedGroup>(static_cast<int>(own - members.begin()),
                                            std::vector<int>(members.begin(), members.end()), std::move(name), used_);
  }

  void fail(const std::string&) noexcept override {}

 private:
  const int rank_;
  const int size_;
  const std::shared_ptr<UsedGroups> used_;
};

}  // namespace

void UsedGroups::add(const std::string& name, const std::vector<int>& ranks) {
  if (ranks.size() < 2) return;
  auto known = std::ranges::find(all_, ranks, &UsedGroup::ranks);
  if (known == all_.end()) known = all_.insert(known, UsedGroup{.ranks = ranks, .names = {}});
  if (std::ranges::find(known->names, name) == known->names.end()) known->names.push_back(name);
}

std::unique_ptr<World> make_simulated_world(int rank, int size, std::shared_ptr<UsedGroups> used) {
  require(rank >= 0 && rank < size, "rank is {}, the simulated world has {} ranks", rank, size);
  return std::make_unique<SimulatedWorld>(rank, size, std::move(used));
}

}  // namespace loom::comm
