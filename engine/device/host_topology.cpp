#include "engine/device/host_topology.h"

#include <numa.h>

#include <algorithm>
#include <memory>

#include "engine/core/thread_cores.h"

namespace loom::device {
namespace {

using Mask = std::unique_ptr<bitmask, void (*)(bitmask*)>;

std::vector<int> cores_of_node(int node, const std::vector<int>& allowed) {
  const Mask mask(numa_allocate_cpumask(), numa_free_cpumask);
  if (numa_node_to_cpus(node, mask.get()) != 0) return {};
  std::vector<int> cores;
  std::ranges::copy_if(allowed, std::back_inserter(cores),
                       [&](int core) { return numa_bitmask_isbitset(mask.get(), static_cast<unsigned>(core)) != 0; });
  return cores;
}

// libnuma returns 0 for an unknown distance.
int distance(int from, int to) {
  const int known = numa_distance(from, to);
  if (known > 0) return known;
  return from == to ? 10 : 20;
}

HostNode read_node(int number, const bitmask& giving, const std::vector<int>& allowed) {
  long long free = 0;
  const long long bytes = numa_node_size64(number, &free);
  HostNode node{.number = number, .cores = cores_of_node(number, allowed)};
  node.memory_bytes = std::max(0LL, bytes);
  node.free_bytes = bytes > 0 ? free : 0;
  node.gives_memory = bytes > 0 && numa_bitmask_isbitset(&giving, static_cast<unsigned>(number)) != 0;
  return node;
}

// Cores without a node in the kernel's list are added to the first node.
void add_the_rest(HostTopology& topology, const std::vector<int>& allowed) {
  if (topology.nodes.empty()) topology.nodes.emplace_back();
  std::vector<int>& first = topology.nodes.front().cores;
  for (const int core : allowed) {
    if (topology.node_of_core(core) == nullptr) first.insert(std::ranges::upper_bound(first, core), core);
  }
}

}  // namespace

std::vector<int> HostTopology::cores() const {
  std::vector<int> all;
  for (const HostNode& node : nodes) all.insert(all.end(), node.cores.begin(), node.cores.end());
  std::ranges::sort(all);
  return all;
}

const HostNode* HostTopology::node(int number) const {
  const auto found = std::ranges::find(nodes, number, &HostNode::number);
  return found == nodes.end() ? nullptr : &*found;
}

const HostNode* HostTopology::node_of_core(int core) const {
  const auto found =
      std::ranges::find_if(nodes, [&](const HostNode& node) { return std::ranges::binary_search(node.cores, core); });
  return found == nodes.end() ? nullptr : &*found;
}

std::optional<int> HostTopology::nearest_with_memory(int number) const {
  const HostNode* const from = node(number);
  if (from == nullptr) return std::nullopt;
  if (from->gives_memory) return number;
  std::optional<std::size_t> nearest;
  for (std::size_t i = 0; i < nodes.size() && i < from->distances.size(); ++i) {
    if (!nodes[i].gives_memory) continue;
    if (!nearest || from->distances[i] < from->distances[*nearest]) nearest = i;
  }
  return nearest ? std::optional(nodes[*nearest].number) : std::nullopt;
}

HostTopology HostTopology::detect() {
  const std::vector<int> allowed = cores_of_this_thread();
  if (numa_available() < 0) return {.nodes = {{.cores = allowed}}};
  HostTopology topology{.available = true};
  const Mask giving(numa_get_mems_allowed(), numa_free_nodemask);
  for (int number = 0; number <= numa_max_node(); ++number) {
    if (numa_bitmask_isbitset(numa_nodes_ptr, static_cast<unsigned>(number)) == 0) continue;
    topology.nodes.push_back(read_node(number, *giving, allowed));
  }
  add_the_rest(topology, allowed);
  for (HostNode& from : topology.nodes) {
    for (const HostNode& to : topology.nodes) from.distances.push_back(distance(from.number, to.number));
  }
  return topology;
}

}  // namespace loom::device
