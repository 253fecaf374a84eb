// HostTopology: the NUMA nodes of this machine and their cores, as this process may use them.
//
// Units    bytes; nodes, cores and distances are the kernel's numbers.
// Scope    cores are those that the calling thread may use (taskset, cgroup cpuset, an MPI launcher's binding); a node
//          has memory for this process where the cpuset lets it take memory there.
// No NUMA  one node 0 with all cores, available false: nothing can be placed.
// Threads  detect() reads the system anew at each call; a value is not shared.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace loom::device {

struct HostNode {
  int number = 0;
  std::vector<int> cores{};       // ascending; empty: none of its cores may be used
  bool gives_memory = true;       // to this process
  std::int64_t memory_bytes = 0;  // of the node; 0: none, or not known
  std::int64_t free_bytes = 0;    // at the time of detect()
  std::vector<int> distances{};   // to the nodes of HostTopology::nodes, in their order; 10 is itself
};

struct HostTopology {
  bool available = false;         // the kernel reports NUMA
  std::vector<HostNode> nodes{};  // of the machine, ascending by number

  // All cores, ascending.
  std::vector<int> cores() const;
  // Null: not of this process.
  const HostNode* node(int number) const;
  const HostNode* node_of_core(int core) const;
  // The node itself where it gives memory, else the nearest that does, of equals the first; nothing where none does.
  std::optional<int> nearest_with_memory(int number) const;

  // Through libnuma.
  static HostTopology detect();
};

}  // namespace loom::device
