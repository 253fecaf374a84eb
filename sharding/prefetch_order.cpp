#include "sharding/prefetch_order.h"

#include <algorithm>

#include "sharding/fully_shard.h"
#include "sharding/selected_modules.h"

namespace loom::sharding {
namespace {

// Groups whose hooks run at one module.
struct Unit {
  std::string path;  // of that module
  std::size_t entry = 0;
  bool is_wrapped = false;  // that module is a group, whose entry counts
  PrefetchUnit modules;
  std::vector<std::size_t> inside;  // units that follow this one, by the list
};

std::vector<Unit> units_of(std::span<const WrappedGroup> groups) {
  std::vector<Unit> units;
  for (const WrappedGroup& group : groups) {
    const std::string& path = group.hook_module.empty() ? group.paths.front() : group.hook_module;
    auto unit = std::ranges::find(units, path, &Unit::path);
    if (unit == units.end()) {
      unit = units.emplace(units.end());
      unit->path = path;
      unit->entry = group.entry;
    }
    const bool is_it = group.paths.front() == path;
    if (is_it || !unit->is_wrapped) unit->entry = is_it ? group.entry : std::min(unit->entry, group.entry);
    unit->is_wrapped = unit->is_wrapped || is_it;
    unit->modules.push_back(group.paths.front());
  }
  return units;
}

// The innermost unit around `unit` that comes before it in the list.
Unit* holder_of(const Unit& unit, std::vector<Unit>& units) {
  Unit* holder = nullptr;
  for (Unit& other : units) {
    if (!is_below(unit.path, other.path) || other.entry >= unit.entry) continue;
    if (holder == nullptr || is_below(other.path, holder->path)) holder = &other;
  }
  return holder;
}

void append(const std::vector<Unit>& units, std::size_t index, bool backward, std::vector<PrefetchUnit>& order) {
  order.push_back(units[index].modules);
  std::vector<std::size_t> inside = units[index].inside;
  if (backward) std::ranges::reverse(inside);
  for (const std::size_t inner : inside) append(units, inner, backward, order);
}

PrefetchUnits by_list(std::vector<Unit> units) {
  std::ranges::stable_sort(units, {}, &Unit::entry);
  std::vector<std::size_t> outermost;
  for (std::size_t i = 0; i < units.size(); ++i) {
    Unit* holder = holder_of(units[i], units);
    (holder == nullptr ? outermost : holder->inside).push_back(i);
  }
  PrefetchUnits order;
  for (const std::size_t index : outermost) append(units, index, /*backward=*/false, order.forward);
  std::ranges::reverse(outermost);
  for (const std::size_t index : outermost) append(units, index, /*backward=*/true, order.backward);
  return order;
}

using PrefetchSetter = void (*)(nn::Module&, const std::vector<nn::Module*>&);

// The module of a unit whose hook runs last.
const std::string& last_to_run(const PrefetchUnit& unit, bool backward) {
  const auto depth = [&](const std::string& path) {
    return std::ranges::count_if(unit, [&](const std::string& other) { return is_below(path, other); });
  };
  const std::string* last = &unit.front();
  for (const std::string& path : unit) {
    if (backward ? depth(path) <= depth(*last) : depth(path) > depth(*last)) last = &path;
  }
  return *last;
}

void set_lists(nn::Module& model, const std::vector<PrefetchUnit>& order, int count, bool backward) {
  const PrefetchSetter set = backward ? set_modules_to_backward_prefetch : set_modules_to_forward_prefetch;
  for (std::size_t i = 0; count > 0 && i + 1 < order.size(); ++i) {
    const std::size_t end = std::min(order.size(), i + 1 + static_cast<std::size_t>(count));
    std::vector<nn::Module*> targets;
    for (std::size_t next = i + 1; next < end; ++next) {
      for (const std::string& path : order[next]) targets.push_back(model.find(path));
    }
    set(*model.find(last_to_run(order[i], backward)), targets);
  }
}

}  // namespace

PrefetchUnits prefetch_units(std::span<const WrappedGroup> groups, PrefetchOrder order) {
  std::vector<Unit> units = units_of(groups);
  if (order == PrefetchOrder::kList) return by_list(std::move(units));
  PrefetchUnits registered;
  for (Unit& unit : units) registered.forward.push_back(std::move(unit.modules));
  registered.backward.assign(registered.forward.rbegin(), registered.forward.rend());
  return registered;
}

void set_prefetch_units(nn::Module& model, const PrefetchUnits& units, int forward, int backward) {
  set_lists(model, units.forward, forward, /*backward=*/false);
  set_lists(model, units.backward, backward, /*backward=*/true);
}

}  // namespace loom::sharding
