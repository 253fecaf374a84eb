// CPU affinity: what CPU_AFFINITY_CONF and --bind-core ask for, and the cores that each rank of this machine gets.
//
// CPU_AFFINITY_CONF  <mode>[,npu<rank>:<first>-<last>]...[,npu_affine:<0|1>][,force:<0|1>][,lazy_bind:<0|1>], as
//                    torch_npu has it; the mode also as mode:<mode>. 0 binds nothing, 1 all threads of a rank to its
//                    range, 2 the host thread to the range's first core, the streams' workers to its second and compute
//                    threads to the rest. <rank> counts the ranks of this machine; several ranges of one rank add up.
// --bind-core        msrun's: True (mode 1), False, or a JSON map as {"device0": ["0-9"], "device1": ["10-19"]}; the
//                    key scheduler is taken and ignored, as there is none.
// Range              of a rank that is not named: an equal part of the cores that this process may use, in their order;
//                    with npu_affine:1 the cores of the NUMA node of its device.
// force              1: of a range that is named, the cores that this process may use; 0: all of them must be.
// lazy_bind          is taken and changes nothing: threads are bound when they begin.
// Errors             ConfigError with the value, the grammar, or the cores that this process may use.
// Source             torch_npu, CPU_AFFINITY_CONF; MindSpore, msrun.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/thread_cores.h"
#include "engine/device/host_topology.h"

namespace loom {
class RankContext;
}

namespace loom::launch {

enum class AffinityMode : std::uint8_t { kOff = 0, kRange = 1, kCores = 2 };

struct AffinityRequest {
  AffinityMode mode = AffinityMode::kOff;
  std::map<int, std::vector<int>> cores_of_rank{};  // ranks of this machine that are named; ascending, each core once
  bool npu_affine = false;
  bool force = false;
  std::string origin = "CPU_AFFINITY_CONF";  // for messages
};

// An empty text is mode 0.
AffinityRequest parse_affinity_conf(std::string_view text);
AffinityRequest parse_bind_core(std::string_view text);

// The cores and memory of a rank of this machine.
struct RankCores {
  std::vector<int> range{};  // ascending; empty: not bound
  ThreadCores threads{};     // by role; subsets of the range
  std::optional<int> node;   // where its host memory goes; nothing: the node of the core it runs on
};

struct Placement {
  std::vector<RankCores> ranks{};    // of this machine, by their number on it
  std::vector<std::string> notes{};  // for one rank to print
};

// `local_ranks` of this machine. `node_of_device` is the NUMA node of the device of each of them, as a device profile
// has it; empty: devices are spread over the nodes with cores in equal parts. The same on every rank of a process.
Placement place_ranks(const AffinityRequest& request, const device::HostTopology& topology, int local_ranks,
                      const std::vector<int>& node_of_device = {});

// Binds the calling thread, the rank's host thread, and has the rank's other threads bound when they begin. Before the
// device and the compute pool of the rank are made.
void bind_rank(RankContext& context, const RankCores& cores);

}  // namespace loom::launch
