// The collectives of one step, summed by kind, group size and the farthest links that they cross.
//
// Threads  any.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/device/recording.h"
#include "engine/virtual_time/time_model.h"

namespace loom::observe {

struct CollectiveSum {
  std::string collective;  // "all_gather", "reduce_scatter", "all_reduce"
  std::int64_t ranks = 0;
  std::string link;  // the farthest level of links it crosses: "node", "cluster"; empty among one rank
  std::int64_t count = 0;
  std::int64_t received_bytes = 0;  // by this rank
  std::int64_t time_ns = 0;         // alone on the links
};

// In order of kind, ranks and link.
std::vector<CollectiveSum> sum_collectives(const device::Recording& recording, const virtual_time::TimeModel& model);
// [{"collective", "ranks", "link", "count", "received_bytes", "time_ns"}, ...]
nlohmann::ordered_json to_json(const std::vector<CollectiveSum>& sums);

}  // namespace loom::observe
