#include "engine/launch/affinity.h"

#include <algorithm>

#include "engine/core/count_cores.h"
#include "engine/core/error.h"
#include "engine/core/rank_context.h"

namespace loom::launch {
namespace {

// The place of the device of rank `rank` of `ranks`.
std::optional<int> node_of_rank(const device::HostTopology& topology, int rank, int ranks,
                                const std::vector<int>& node_of_device) {
  if (!node_of_device.empty()) return node_of_device[static_cast<std::size_t>(rank) % node_of_device.size()];
  std::vector<int> nodes;
  for (const device::HostNode& node : topology.nodes) {
    if (!node.cores.empty()) nodes.push_back(node.number);
  }
  if (nodes.empty()) return std::nullopt;
  return nodes[static_cast<std::size_t>(rank) * nodes.size() / static_cast<std::size_t>(ranks)];
}

// Part `rank` of `ranks` equal ones; where there are fewer cores than ranks, several ranks get the same core.
std::vector<int> equal_part(const std::vector<int>& cores, int rank, int ranks) {
  const auto begin = cores.size() * static_cast<std::size_t>(rank) / static_cast<std::size_t>(ranks);
  const auto end = cores.size() * static_cast<std::size_t>(rank + 1) / static_cast<std::size_t>(ranks);
  return {cores.begin() + static_cast<std::ptrdiff_t>(begin),
          cores.begin() + static_cast<std::ptrdiff_t>(std::max(begin + 1, end))};
}

// The cores of one rank of a machine.
class RankPlace {
 public:
  RankPlace(const AffinityRequest& request, const device::HostTopology& topology, int rank, int ranks)
      : request_(request), topology_(topology), cores_(topology.cores()), rank_(rank), ranks_(ranks) {}

  std::vector<int> range(std::optional<int> node) const {
    const auto named = request_.cores_of_rank.find(rank_);
    if (named != request_.cores_of_rank.end()) return named_cores(named->second);
    if (!request_.npu_affine) return equal_part(cores_, rank_, ranks_);
    return cores_of_node(node);
  }

 private:
  std::string name() const { return fmt::format("{}{}", request_.origin == "--bind-core" ? "device" : "npu", rank_); }

  std::vector<int> named_cores(const std::vector<int>& asked) const {
    std::vector<int> usable, absent;
    for (const int core : asked) {
      (std::ranges::binary_search(cores_, core) ? usable : absent).push_back(core);
    }
    if (absent.empty() || (request_.force && !usable.empty())) return usable;
    config_error("{} binds {} to cores {}, but this process may not use {}; it may use {}; name some of these",
                 request_.origin, name(), core_ranges(asked), core_ranges(absent), core_ranges(cores_));
  }

  std::vector<int> cores_of_node(std::optional<int> number) const {
    const device::HostNode* const node = number ? topology_.node(*number) : nullptr;
    if (node != nullptr && !node->cores.empty()) return node->cores;
    config_error(
        "{} has npu_affine:1, and the device of {} is at NUMA node {}, of which this process may use no core; it may "
        "use "
        "{}; name cores with npu{}:<first>-<last>, or leave out npu_affine:1",
        request_.origin, name(), number.value_or(0), core_ranges(cores_), rank_);
  }

  const AffinityRequest& request_;
  const device::HostTopology& topology_;
  const std::vector<int> cores_;
  const int rank_;
  const int ranks_;
};

ThreadCores threads_of(AffinityMode mode, const std::vector<int>& range) {
  if (mode == AffinityMode::kRange || range.size() == 1) return {.host = range, .streams = range, .compute = range};
  const std::vector<int> second{range[1]};
  const std::vector<int> rest(range.begin() + 2, range.end());
  return {.host = {range[0]}, .streams = second, .compute = rest.empty() ? second : rest};
}

std::string describe(const AffinityRequest& request, const device::HostTopology& topology, int rank,
                     const RankCores& cores) {
  std::string text =
      fmt::format("{}: rank {} of this machine on cores {}", request.origin, rank, core_ranges(cores.range));
  if (request.mode == AffinityMode::kCores) {
    text += fmt::format(" (host thread {}, streams {}, compute threads {})", core_ranges(cores.threads.host),
                        core_ranges(cores.threads.streams), core_ranges(cores.threads.compute));
  }
  if (topology.available && cores.node) text += fmt::format(", memory on NUMA node {}", *cores.node);
  return text;
}

}  // namespace

Placement place_ranks(const AffinityRequest& request, const device::HostTopology& topology, int local_ranks,
                      const std::vector<int>& node_of_device) {
  Placement placement;
  const bool binds = request.mode != AffinityMode::kOff;
  for (int rank = 0; rank < local_ranks; ++rank) {
    RankCores& cores = placement.ranks.emplace_back();
    const std::optional<int> device_node = node_of_rank(topology, rank, local_ranks, node_of_device);
    if (!node_of_device.empty()) cores.node = device_node;
    if (!binds) continue;
    cores.range = RankPlace(request, topology, rank, local_ranks).range(device_node);
    cores.threads = threads_of(request.mode, cores.range);
    const device::HostNode* const first = topology.node_of_core(cores.range.front());
    if (!cores.node && first != nullptr) cores.node = first->number;
    placement.notes.push_back(describe(request, topology, rank, cores));
  }
  if (!binds) return placement;
  for (const auto& [rank, cores] : request.cores_of_rank) {
    if (rank < local_ranks) continue;
    placement.notes.push_back(fmt::format("{}: {} ranks run on this machine, so the cores of rank {} are not used",
                                          request.origin, local_ranks, rank));
  }
  return placement;
}

void bind_rank(RankContext& context, const RankCores& cores) {
  context.slot<ThreadCores>() = cores.threads;
  if (!cores.range.empty()) count_cores();
  bind_this_thread(context, ThreadRole::kHost);
}

}  // namespace loom::launch
