#include "engine/explain/other_settings.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>

#include "engine/plan/config_changes.h"
#include "sharding/config/fsdp2_keys.h"

namespace loom::explain {
namespace {

using plan::PlanChoice;
using sharding::Fsdp2Config;

constexpr int kMostPrefetch = 2;

using Change = std::function<void(Fsdp2Config&)>;

void add_prefetch(std::vector<Change>& changes) {
  for (int groups = 0; groups <= kMostPrefetch; ++groups) {
    changes.push_back([groups](Fsdp2Config& c) { c.num_to_forward_prefetch = groups; });
    changes.push_back([groups](Fsdp2Config& c) { c.num_to_backward_prefetch = groups; });
    changes.push_back([groups](Fsdp2Config& c) { c.num_to_forward_prefetch = c.num_to_backward_prefetch = groups; });
  }
}

void add_dtypes(std::vector<Change>& changes) {
  for (const std::optional<DType> dtype : {std::optional<DType>{}, {DType::kF32}, {DType::kBF16}}) {
    changes.push_back([dtype](Fsdp2Config& c) { c.param_dtype = dtype; });
    changes.push_back([dtype](Fsdp2Config& c) { c.reduce_dtype = dtype; });
  }
}

std::vector<Change> changes_of(const plan::ChoicePlans& plans) {
  std::vector<Change> changes{[](Fsdp2Config& c) { c.reshard_after_forward = true; },
                              [](Fsdp2Config& c) { c.reshard_after_forward = false; },
                              [](Fsdp2Config& c) { c.offload_to_cpu = !c.offload_to_cpu; }};
  add_prefetch(changes);
  add_dtypes(changes);
  if (!plans.may_recompute()) return changes;
  changes.push_back([](Fsdp2Config& c) { plan::set_recompute(c, false); });
  changes.push_back([](Fsdp2Config& c) { plan::set_recompute(c, true); });
  changes.push_back([](Fsdp2Config& c) { plan::set_selected_recompute(c); });
  changes.push_back([](Fsdp2Config& c) { plan::set_swapped_recompute(c); });
  return changes;
}

}  // namespace

std::vector<PlanChoice> other_settings(const plan::ChoicePlans& plans) {
  std::vector<PlanChoice> choices;
  if (!plans.has_file()) return choices;
  for (const Change& change : changes_of(plans)) {
    PlanChoice choice = plans.base();
    change(choice.config);
    if (choice != plans.base() && std::ranges::find(choices, choice) == choices.end()) choices.push_back(choice);
  }
  return choices;
}

std::string describe_keys(const Fsdp2Config& config, const Fsdp2Config& base) {
  std::vector<std::string> changes;
  for (const sharding::Fsdp2Key& key : sharding::fsdp2_keys()) {
    if (!sharding::same_value(key, config, base)) changes.push_back(fmt::format("{}: {}", key.name, key.write(config)));
  }
  return fmt::to_string(fmt::join(changes, ", "));
}

}  // namespace loom::explain
