#include "engine/plan/adaptive.h"

#include <algorithm>
#include <fmt/core.h>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/core/wrapped.h"
#include "engine/plan/config_changes.h"
#include "engine/train/inputs.h"
#include "models/mixin/fsdp2_mixin.h"
#include "sharding/parallelize.h"

namespace loom::plan {
namespace {

using sharding::Fsdp2Config;

constexpr std::array<std::string_view, kKeepModes> kNames{"keep", "keep selected ops", "swap", "recompute",
                                                          "recompute, swap input"};
// In the order of forward.
constexpr std::array kPlaces{KeepMode::kSwap, KeepMode::kRecomputeSwapped, KeepMode::kRecompute, KeepMode::kSelected,
                             KeepMode::kKeep};

std::size_t index_of(KeepMode mode) { return static_cast<std::size_t>(mode); }

// Totals over all classes: the number of modules in each mode, its savings and its cost.
struct Mixture {
  std::vector<std::array<int, kKeepModes>> counts;
  std::int64_t saved_bytes = 0;
  std::int64_t added_ns = 0;
};

// The shapes of a module's parameters, by name: modules with the same are alike.
std::string shape_key(const nn::Module& module) {
  std::string key(module.type_name());
  for (const auto& [path, slot] : module.named_slots()) {
    key += fmt::format(";{}{}", path, to_string(slot->shard.global_shape));
  }
  return key;
}

std::vector<AdaptedClass> classes_of(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks) {
  if (!arguments.parallel.use_torch_fsdp2) {
    config_error(
        "--adaptive-recompute-device-swap chooses among the modules of a file; give --use-torch-fsdp2 "
        "--fsdp2-config-path FILE");
  }
  const train::TrainingInputs inputs = train::read_inputs(arguments, callbacks);
  const auto patterns = recomputable(*inputs.fsdp2_config);
  const auto model = train::provide_tuned_model(arguments, callbacks, inputs.tuning);
  nn::Module& root = models::sharded_module(*model);
  std::vector<std::string> warnings, keys;
  std::vector<AdaptedClass> classes;
  std::size_t place = 0;
  for (const std::string& path : sharding::paths_of(root, patterns, warnings)) {
    const nn::Module& module = *root.find(path);
    const std::string key = shape_key(module);
    const auto known = static_cast<std::size_t>(std::ranges::find(keys, key) - keys.begin());
    if (known == keys.size()) {
      keys.push_back(key);
      classes.push_back({.type = std::string(module.type_name())});
    }
    classes[known].paths.push_back(path);
    classes[known].places.push_back(place++);
  }
  if (!classes.empty()) return classes;
  config_error(
      "{}: --adaptive-recompute-device-swap finds no module to choose for; list the layers in sub_modules_to_wrap "
      "(\"model.layers.{{*}}\") or in recompute_modules",
      inputs.fsdp2_config->file_name);
}

// In the order of forward, all classes together.
std::vector<AdaptedModule> places_of(const std::vector<AdaptedClass>& classes, const Mixture& mixture) {
  std::vector<std::pair<std::size_t, AdaptedModule>> placed;
  for (std::size_t c = 0; c < classes.size(); ++c) {
    std::size_t next = 0;
    for (const KeepMode mode : kPlaces) {
      for (int i = 0; i < mixture.counts[c][index_of(mode)]; ++i, ++next) {
        placed.push_back({classes[c].places[next], {classes[c].paths[next], mode}});
      }
    }
  }
  std::ranges::sort(placed, {}, [](const auto& at) { return at.first; });
  std::vector<AdaptedModule> modules;
  for (auto& [place, module] : placed) modules.push_back(std::move(module));
  return modules;
}

// Those that no other one beats in both, the cheapest first.
void keep_best(std::vector<Mixture>& mixtures) {
  std::ranges::stable_sort(mixtures, [](const Mixture& a, const Mixture& b) {
    return std::pair(a.added_ns, -a.saved_bytes) < std::pair(b.added_ns, -b.saved_bytes);
  });
  std::vector<Mixture> best;
  for (Mixture& mixture : mixtures) {
    if (best.empty() || mixture.saved_bytes > best.back().saved_bytes) best.push_back(std::move(mixture));
  }
  mixtures = std::move(best);
}

class Search {
 public:
  Search(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks,
         const virtual_time::HardwareProfile& profile)
      : arguments_(arguments), callbacks_(callbacks), profile_(profile) {
    choice_.classes = classes_of(arguments, callbacks);
  }

  AdaptiveChoice run() {
    choice_.all_kept = plan(mixture_of(std::nullopt), Capacity::kLifted);
    choice_.all_kept.runs.clear();
    choice_.budget_bytes = choice_.all_kept.memory.capacity_bytes;
    measure_costs();
    const std::vector<Mixture> mixtures = best_mixtures();
    const std::size_t found = first_that_fits(mixtures);
    if (found == mixtures.size()) refuse(mixtures.back());
    for (std::size_t c = 0; c < choice_.classes.size(); ++c) choice_.classes[c].counts = mixtures[found].counts[c];
    choice_.modules = places_of(choice_.classes, mixtures[found]);
    return std::move(choice_);
  }

 private:
  // All modules keep everything, except one class, whose modules are in one mode.
  struct One {
    std::size_t of_class = 0;
    KeepMode mode = KeepMode::kKeep;
  };
  Mixture mixture_of(const std::optional<One>& one) const {
    Mixture mixture;
    for (std::size_t c = 0; c < choice_.classes.size(); ++c) {
      const KeepMode mode = one && one->of_class == c ? one->mode : KeepMode::kKeep;
      mixture.counts.emplace_back()[index_of(mode)] = static_cast<int>(choice_.classes[c].paths.size());
    }
    return mixture;
  }

  StepEstimate plan(const Mixture& mixture, Capacity capacity) const {
    const std::vector<AdaptedModule> modules = places_of(choice_.classes, mixture);
    return estimate_step(arguments_, callbacks_, profile_, capacity,
                         [&](Fsdp2Config& config) { apply_modes(modules, config); });
  }

  void measure_costs() {
    const StepEstimate& kept = choice_.all_kept;
    for (std::size_t c = 0; c < choice_.classes.size(); ++c) {
      AdaptedClass& of = choice_.classes[c];
      const auto count = static_cast<std::int64_t>(of.paths.size());
      for (std::size_t m = 1; m < kKeepModes; ++m) {
        const StepEstimate all = plan(mixture_of(One{c, static_cast<KeepMode>(m)}), Capacity::kLifted);
        of.costs[m] = {(kept.memory.peak_allocated_bytes - all.memory.peak_allocated_bytes) / count,
                       std::max<std::int64_t>(0, all.time.step_ns - kept.time.step_ns) / count};
      }
    }
  }

  // Class by class and module by module, with what is beaten left out on the way.
  std::vector<Mixture> best_mixtures() const {
    std::vector<Mixture> all(1);
    for (const AdaptedClass& of : choice_.classes) {
      for (Mixture& mixture : all) mixture.counts.emplace_back();
      for (std::size_t i = 0; i < of.paths.size(); ++i) {
        std::vector<Mixture> next;
        for (const Mixture& mixture : all) {
          for (std::size_t m = 0; m < kKeepModes; ++m) {
            if (m > 0 && of.costs[m].saved_bytes <= 0) continue;
            Mixture& more = next.emplace_back(mixture);
            ++more.counts.back()[m];
            more.saved_bytes += of.costs[m].saved_bytes;
            more.added_ns += of.costs[m].added_ns;
          }
        }
        keep_best(next);
        all = std::move(next);
      }
    }
    return all;
  }

  bool fits(const Mixture& mixture) {
    try {
      StepEstimate plan = this->plan(mixture, Capacity::kOfTheProfile);
      choice_.chosen = std::move(plan);
      return true;
    } catch (const OutOfMemoryError&) {
      return false;
    }
  }

  // More is saved from one to the next. From where the costs say that it fits, in both directions. The plan of the last
  // one that was tried and fits is choice_.chosen.
  std::size_t first_that_fits(const std::vector<Mixture>& mixtures) {
    const std::int64_t wanted = choice_.all_kept.memory.peak_allocated_bytes - choice_.budget_bytes;
    const auto guess = std::ranges::lower_bound(mixtures, wanted, {}, &Mixture::saved_bytes);
    auto fitting = static_cast<std::size_t>(guess - mixtures.begin());
    std::size_t failing = 0;  // the first that is not known to fail
    std::size_t stride = 1;
    while (fitting < mixtures.size() && !fits(mixtures[fitting])) {
      failing = fitting + 1;
      fitting = std::min(mixtures.size(), fitting + stride);
      if (fitting == mixtures.size() && failing < mixtures.size()) fitting = mixtures.size() - 1;
      stride *= 2;
    }
    stride = 1;
    while (failing < fitting && fitting < mixtures.size()) {
      const std::size_t left = fitting - failing;
      const std::size_t tried = failing == 0 && stride < left ? fitting - stride : failing + left / 2;
      stride *= 2;
      if (fits(mixtures[tried])) {
        fitting = tried;
      } else {
        failing = tried + 1;
      }
    }
    return fitting;
  }

  [[noreturn]] void refuse(const Mixture& smallest) const {
    const StepEstimate least = plan(smallest, Capacity::kLifted);
    raise<OutOfMemoryError>(
        "adaptive recompute: the device has {:.1f} MiB, and with every module in its smallest mode a step reserves "
        "{:.1f} MiB; give --adaptive-recompute-device-size at least that, a smaller --micro-batch-size, or "
        "offload_to_cpu: true",
        mib(choice_.budget_bytes), mib(least.memory.peak_reserved_bytes));
  }

  const train::TrainSections& arguments_;
  const train::PretrainCallbacks& callbacks_;
  const virtual_time::HardwareProfile& profile_;
  AdaptiveChoice choice_;
};

// "model.layers.0 to model.layers.11", or the one.
std::string range_of(const std::vector<std::string>& paths, std::size_t begin, int count) {
  if (count == 0) return "-";
  const std::string& first = paths[begin];
  return count == 1 ? first : fmt::format("{} to {}", first, paths[begin + static_cast<std::size_t>(count) - 1]);
}

struct Units {
  Unit bytes, time;
};

Units units_of(const AdaptiveChoice& choice) {
  std::int64_t bytes = 0, time = 0;
  for (const AdaptedClass& of : choice.classes) {
    for (const ModeCost& cost : of.costs) {
      bytes = std::max(bytes, cost.saved_bytes);
      time = std::max(time, cost.added_ns);
    }
  }
  return {.bytes = unit_of_bytes(bytes), .time = unit_of_time(time)};
}

std::string row(std::string_view mode, std::string_view modules, std::string_view saves, std::string_view costs,
                std::string_view which) {
  constexpr std::size_t kWhichColumn = 58;
  return wrapped(fmt::format("  {:<22}{:>9}{:>12}{:>11}  {}\n", mode, modules, saves, costs, which), kWhichColumn);
}

}  // namespace

void apply_modes(const std::vector<AdaptedModule>& modules, Fsdp2Config& config) {
  const auto swaps = [](const AdaptedModule& module) {
    return module.mode == KeepMode::kSwap || module.mode == KeepMode::kRecomputeSwapped;
  };
  const bool any_swaps = std::ranges::any_of(modules, swaps);
  config.recompute_modules.clear();
  for (const AdaptedModule& module : modules) {
    if (any_swaps) config.swap_by_path.push_back({module.path, swaps(module)});
    if (module.mode == KeepMode::kKeep || module.mode == KeepMode::kSwap) continue;
    const bool selected = module.mode == KeepMode::kSelected;
    const auto keep = selected ? sharding::RecomputeKeep::kSelectedOpsNeeded : sharding::RecomputeKeep::kNone;
    config.recompute_by_path.push_back({.path = module.path, .use_reentrant = false, .keep = keep});
  }
}

std::string_view name(KeepMode mode) { return kNames[index_of(mode)]; }

AdaptiveChoice choose_adaptive(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks,
                               const virtual_time::HardwareProfile& profile) {
  return Search(arguments, callbacks, profile).run();
}

nlohmann::ordered_json to_json(const AdaptiveChoice& choice) {
  nlohmann::ordered_json json;
  json["budget_bytes"] = choice.budget_bytes;
  json["all_kept_peak_bytes"] = choice.all_kept.memory.peak_allocated_bytes;
  json["all_kept_step_ns"] = choice.all_kept.time.step_ns;
  json["modules"] = nlohmann::ordered_json::array();
  for (const AdaptedModule& module : choice.modules) {
    json["modules"].push_back({{"module", module.path}, {"mode", name(module.mode)}});
  }
  return json;
}

std::string to_text(const AdaptiveChoice& choice) {
  const Units units = units_of(choice);
  std::string text = fmt::format("adaptive recompute for {}\n", memory_text(choice.budget_bytes)) +
                     row("mode", "modules", fmt::format("saves {}", units.bytes.name),
                         fmt::format("costs {}", units.time.name), "which; bytes and time are of one module");
  for (const AdaptedClass& of : choice.classes) {
    std::size_t begin = 0;
    for (const KeepMode mode : kPlaces) {
      const int count = of.counts[index_of(mode)];
      const ModeCost& cost = of.costs[index_of(mode)];
      if (count == 0 && cost.saved_bytes <= 0) continue;
      text += row(name(mode), std::to_string(count), figure(cost.saved_bytes, units.bytes),
                  figure(cost.added_ns, units.time), range_of(of.paths, begin, count));
      begin += static_cast<std::size_t>(count);
    }
  }
  return text + fmt::format("  peak allocated {} instead of {}, step {} instead of {}\n",
                            memory_text(choice.chosen.memory.peak_allocated_bytes),
                            memory_text(choice.all_kept.memory.peak_allocated_bytes),
                            time_text(choice.chosen.time.step_ns), time_text(choice.all_kept.time.step_ns));
}

}  // namespace loom::plan
