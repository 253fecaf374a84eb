#include "engine/observe/collective_sums.h"

#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

namespace loom::observe {

std::vector<CollectiveSum> sum_collectives(const device::Recording& recording, const virtual_time::TimeModel& model) {
  using Key = std::tuple<std::string, std::int64_t, std::string>;
  std::map<Key, CollectiveSum> kinds;
  for (const device::Entry& entry : recording.entries) {
    if (entry.kind != device::EntryKind::kCollective) continue;
    const std::vector<int>& ranks = recording.group(entry.group);
    const std::int64_t bytes = model.carried_bytes(entry.collective, entry.bytes, recording.text(entry.subject));
    const virtual_time::CollectiveTime time = model.collective(entry.collective, bytes, model.shape_of(ranks));
    const auto size = static_cast<std::int64_t>(ranks.size());
    const std::string link = time.legs.empty()
                                 ? std::string()
                                 : model.profile().links.levels[static_cast<std::size_t>(time.legs.back().level)].name;
    const std::string& name = recording.text(entry.name);
    CollectiveSum& sum = kinds[{name, size, link}];
    sum.collective = name;
    sum.ranks = size;
    sum.link = link;
    ++sum.count;
    sum.received_bytes += entry.cost.link_bytes - (entry.bytes - bytes) * (size - 1) / size;
    sum.time_ns += time.time_ns;
  }
  std::vector<CollectiveSum> sums;
  for (auto& [key, sum] : kinds) sums.push_back(std::move(sum));
  return sums;
}

nlohmann::ordered_json to_json(const std::vector<CollectiveSum>& sums) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const CollectiveSum& sum : sums) {
    json.push_back({{"collective", sum.collective},
                    {"ranks", sum.ranks},
                    {"link", sum.link},
                    {"count", sum.count},
                    {"received_bytes", sum.received_bytes},
                    {"time_ns", sum.time_ns}});
  }
  return json;
}

}  // namespace loom::observe
