#include "engine/plan/plan_search.h"

#include <algorithm>
#include <fmt/format.h>
#include <functional>
#include <iterator>
#include <set>

#include "engine/core/error.h"
#include "engine/core/rounding.h"
#include "engine/plan/config_changes.h"
#include "sharding/config/fsdp2_keys.h"

namespace loom::plan {
namespace {

using sharding::Fsdp2Config;

constexpr int kLargestMicroBatch = 1 << 16;
constexpr int kLargestWorld = 1 << 20;
constexpr std::size_t kRemedies = 3;
constexpr std::size_t kTogether = 3;        // changes of a remedy, at most
constexpr std::size_t kRefined = 3;         // combinations of a sweep of which all micro-batches are tried
constexpr std::size_t kRefinedSizes = 64;   // so many of them
constexpr std::size_t kWorldsChecked = 32;  // below the smallest world found

// The recorded kind suits every module; a file that names modules names its kind too.
void set_recompute(Fsdp2Config& config, bool on) {
  const bool chosen_by_file = config.places.contains("recompute_modules");
  config.recompute_modules = on ? recomputable(config) : std::vector<sharding::ModulePattern>{};
  if (on && !chosen_by_file) config.use_reentrant = false;
}

// The same, with the results of selected operators kept; as it is where the file's kind cannot.
void set_selected_recompute(Fsdp2Config& config) {
  set_recompute(config, true);
  if (!config.use_reentrant) config.recompute_keep = sharding::RecomputeKeep::kSelectedOpsNeeded;
}

// The same, with what recompute keeps waiting on the host.
void set_swapped_recompute(Fsdp2Config& config) {
  set_recompute(config, true);
  config.activation_offload_modules = config.recompute_modules;
}

// The keys that the search changes, in the order in which a change is reported.
constexpr std::string_view kSearched[] = {
    "sharding_size",           "reshard_after_forward",    "recompute_modules",
    "use_reentrant",           "recompute_keep",           "activation_offload_modules",
    "num_to_forward_prefetch", "num_to_backward_prefetch", "offload_to_cpu"};

double ns_per_token(const StepEstimate& plan) {
  return static_cast<double>(plan.time.step_ns) / static_cast<double>(plan.throughput.tokens);
}

// The file's sizes fit a world (validate_against_world says why where they do not).
bool fits_layout(const Fsdp2Config& config, int world) {
  const int shard = config.sharding_size == Fsdp2Config::kAllRanks ? world : config.sharding_size;
  return world % shard == 0 && config.reshard_after_forward.on(shard) && world % config.expert_parallel_size == 0 &&
         world % config.context_ranks() == 0;
}

// The first of `count` indexes for which `holds` is false, or their number; it is taken to stay false from there on.
// 0, 1, 3, 7, ... are tried, and the last; then the middle of what is left. Those that hold are tried in ascending
// order.
template <class Holds>
std::size_t first_failing(std::size_t count, Holds&& holds) {
  std::size_t holding = 0;  // every index below it
  std::size_t failing = count;
  for (std::size_t size = 1; holding < failing; size *= 2) {
    const std::size_t i = std::min(size, count) - 1;
    if (!holds(i)) {
      failing = i;
      break;
    }
    holding = i + 1;
  }
  while (holding < failing) {
    const std::size_t middle = holding + (failing - holding) / 2;
    if (holds(middle)) {
      holding = middle + 1;
    } else {
      failing = middle;
    }
  }
  return failing;
}

// The fastest per token first; of equals the one that came first.
void sort_by_speed(std::vector<PlanSearch::Candidate>& candidates) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& a, const auto& b) { return ns_per_token(a.plan) < ns_per_token(b.plan); });
}

// Every choice of `count` of the numbers below `size`, in ascending order.
void for_each_choice(std::size_t size, std::size_t count,
                     const std::function<void(const std::vector<std::size_t>& chosen)>& visit) {
  std::vector<std::size_t> chosen;
  const std::function<void(std::size_t)> extend = [&](std::size_t from) {
    if (chosen.size() == count) return visit(chosen);
    for (std::size_t next = from; next < size; ++next) {
      chosen.push_back(next);
      extend(next + 1);
      chosen.pop_back();
    }
  };
  extend(0);
}

// One of a sweep, with the micro-batches of the sweep that it was tried with.
struct Combination {
  PlanChoice choice = {};
  std::vector<PlanSearch::Candidate> fitting = {};
  std::set<std::size_t> tried = {};  // indexes of micro-batches
  std::size_t fit_up_to = 0;         // the first that does not fit, or their number
};
using TrySize = std::function<bool(Combination& combination, std::size_t size)>;

// All micro-batches that fit, or kRefinedSizes of them.
void refine(Combination& combination, const TrySize& try_size) {
  const std::size_t stride = std::max<std::size_t>(1, ceil_div(combination.fit_up_to, kRefinedSizes));
  for (std::size_t i = stride - 1; i < combination.fit_up_to; i += stride) try_size(combination, i);
}

}  // namespace

bool PlanChoice::operator==(const PlanChoice& other) const {
  return world == other.world && micro_batch == other.micro_batch && sharding::same_values(config, other.config);
}

std::string describe_change(const PlanChoice& choice, const PlanChoice& base) {
  std::vector<std::string> changes;
  for (const std::string_view name : kSearched) {
    const sharding::Fsdp2Key& key = sharding::fsdp2_key(name);
    if (sharding::same_value(key, choice.config, base.config)) continue;
    changes.push_back(fmt::format("{}: {}", name, key.write(choice.config)));
  }
  if (choice.micro_batch != base.micro_batch)
    changes.push_back(fmt::format("--micro-batch-size: {}", choice.micro_batch));
  if (choice.world != base.world) changes.push_back(fmt::format("--world-size: {}", choice.world));
  return changes.empty() ? "as given" : fmt::to_string(fmt::join(changes, ", "));
}

PlanSearch::PlanSearch(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks,
                       const virtual_time::HardwareProfile& profile, SearchOptions options)
    : arguments_(arguments),
      callbacks_(callbacks),
      profile_(profile),
      options_(options),
      has_file_(arguments.parallel.use_torch_fsdp2) {
  base_.world = arguments.launch.ranks;
  base_.micro_batch = arguments.schedule.micro_batch_size;
  if (has_file_) base_.config = train::read_sharding(arguments.parallel);
}

StepEstimate PlanSearch::plan(const PlanChoice& choice, Capacity capacity) const {
  train::TrainSections arguments = arguments_;
  arguments.launch.ranks = choice.world;
  arguments.schedule.micro_batch_size = choice.micro_batch;
  if (!options_.global_batch_size && (choice.world != base_.world || choice.micro_batch != base_.micro_batch)) {
    arguments.schedule.global_batch_size = choice.world / choice.config.context_ranks() * choice.micro_batch;
  }
  if (choice == base_ || !has_file_) return estimate_step(arguments, callbacks_, profile_, capacity);
  return estimate_step(arguments, callbacks_, profile_, capacity, [&](Fsdp2Config& config) { config = choice.config; });
}

std::optional<StepEstimate> PlanSearch::try_plan(const PlanChoice& choice) const {
  try {
    return plan(choice, Capacity::kOfTheProfile);
  } catch (const OutOfMemoryError&) {
    return std::nullopt;
  }
}

PlanSearch::Candidate PlanSearch::candidate(const PlanChoice& choice, StepEstimate plan) const {
  return {choice, describe_change(choice, base_), std::move(plan)};
}

CheckedEstimate PlanSearch::check() {
  CheckedEstimate checked;
  try {
    checked.plan = plan(base_, Capacity::kOfTheProfile);
  } catch (const OutOfMemoryError& error) {
    checked.out_of_memory = error.what();
    checked.plan = plan(base_, Capacity::kLifted);
    checked.plan.memory.fits = dynamic_cast<const HostMemoryError*>(&error) != nullptr;
    checked.remedies = remedies(checked.plan);
  }
  return checked;
}

std::vector<PlanSearch::Change> PlanSearch::proposals(const StepEstimate& too_large) const {
  std::vector<Change> changes;
  const auto propose = [&](const Change& change) {
    PlanChoice choice = base_;
    change(choice);
    if (choice != base_) changes.push_back(change);
  };
  if (has_file_) {
    propose([](PlanChoice& c) { c.config.sharding_size = Fsdp2Config::kAllRanks; });
    propose([](PlanChoice& c) { c.config.reshard_after_forward = true; });
    if (may_recompute()) {
      propose([](PlanChoice& c) { set_selected_recompute(c.config); });
      propose([](PlanChoice& c) { set_recompute(c.config, true); });
      propose([](PlanChoice& c) { set_swapped_recompute(c.config); });
    }
    propose([](PlanChoice& c) { c.config.num_to_forward_prefetch = c.config.num_to_backward_prefetch = 0; });
    propose([fits = too_large.memory.host_fits](PlanChoice& c) { c.config.offload_to_cpu = fits; });
  }
  propose([this](PlanChoice& c) {
    c.micro_batch = std::max(1, c.micro_batch / 2);
    while (!shares_out_batch(c.world, c.micro_batch)) --c.micro_batch;
  });
  return changes;
}

std::vector<Remedy> PlanSearch::remedies(const StepEstimate& too_large) const {
  const std::vector<Change> changes = proposals(too_large);
  std::vector<Candidate> fitting;
  // Two changes only when no single one is enough, three when no two are.
  for (std::size_t together = 1; together <= kTogether && fitting.empty(); ++together) {
    for_each_choice(changes.size(), together, [&](const std::vector<std::size_t>& chosen) {
      PlanChoice choice = base_;
      for (const std::size_t change : chosen) changes[change](choice);
      const auto same = [&](const Candidate& c) { return c.choice == choice; };
      if (std::ranges::any_of(fitting, same)) return;
      if (auto plan = try_plan(choice)) fitting.push_back(candidate(choice, std::move(*plan)));
    });
  }
  sort_by_speed(fitting);
  std::vector<Remedy> remedies;
  for (const Candidate& c : fitting) {
    if (remedies.size() == kRemedies) break;
    remedies.push_back(
        {c.change, too_large.memory.peak_reserved_bytes - c.plan.memory.peak_reserved_bytes, c.plan.time.step_ns});
  }
  return remedies;
}

bool PlanSearch::may_recompute() const {
  return arguments_.parallel.megatron_recompute_flags.empty() && !recomputable(base_.config).empty();
}

std::vector<PlanChoice> PlanSearch::combinations() const {
  std::vector<int> sizes{Fsdp2Config::kAllRanks};
  const auto node = static_cast<int>(profile_.devices_per_node());
  if (node < base_.world && base_.world % node == 0) sizes.push_back(node);
  std::vector<PlanChoice> all;
  for (const int size : sizes) {
    for (const bool recompute : {false, true}) {
      if (recompute && !may_recompute()) continue;
      for (const bool reshard : {true, false}) {
        for (const int prefetch : {0, 1, 2}) {
          PlanChoice choice = base_;
          choice.config.sharding_size = size;
          set_recompute(choice.config, recompute);
          choice.config.reshard_after_forward = reshard;
          choice.config.num_to_forward_prefetch = choice.config.num_to_backward_prefetch = prefetch;
          all.push_back(std::move(choice));
        }
      }
    }
  }
  return all;
}

std::vector<PlanSearch::Candidate> PlanSearch::sweep() {
  if (!has_file_) config_error("--sweep changes keys of a file; give --use-torch-fsdp2 --fsdp2-config-path FILE");
  const std::vector<int> sizes =
      options_.micro_batch_size ? std::vector<int>{*options_.micro_batch_size} : micro_batches(base_.world);

  const TrySize try_size = [&](Combination& combination, std::size_t i) {
    PlanChoice choice = combination.choice;
    choice.micro_batch = sizes[i];
    if (!combination.tried.insert(i).second) return true;
    auto plan = try_plan(choice);
    if (!plan) return false;
    plan->run = {};  // hundreds of recordings would not be small
    combination.fitting.push_back(candidate(choice, std::move(*plan)));
    return true;
  };
  std::vector<Combination> combinations;
  for (PlanChoice& choice : this->combinations()) {
    Combination combination{.choice = std::move(choice)};
    combination.fit_up_to = first_failing(sizes.size(), [&](std::size_t i) { return try_size(combination, i); });
    if (combination.fitting.empty()) continue;
    sort_by_speed(combination.fitting);
    combinations.push_back(std::move(combination));
  }
  std::stable_sort(combinations.begin(), combinations.end(), [](const Combination& a, const Combination& b) {
    return ns_per_token(a.fitting.front().plan) < ns_per_token(b.fitting.front().plan);
  });
  for (std::size_t c = 0; c < std::min(kRefined, combinations.size()); ++c) refine(combinations[c], try_size);
  std::vector<Candidate> fitting;
  for (Combination& combination : combinations) {
    std::ranges::move(combination.fitting, std::back_inserter(fitting));
  }
  sort_by_speed(fitting);
  return fitting;
}

bool PlanSearch::shares_out_batch(int world, int micro_batch) const {
  return !options_.global_batch_size ||
         *options_.global_batch_size % (std::int64_t{world} / base_.config.context_ranks() * micro_batch) == 0;
}

std::vector<int> PlanSearch::micro_batches(int world) const {
  std::vector<int> sizes;
  for (int size = 1; size <= kLargestMicroBatch; ++size) {
    if (shares_out_batch(world, size)) sizes.push_back(size);
  }
  if (!sizes.empty()) return sizes;
  config_error("--global-batch-size is {}, which {} devices cannot share out; use a multiple of {}",
               options_.global_batch_size.value_or(0), world, world);
}

PlanSearch::Candidate PlanSearch::largest_micro_batch() {
  const std::vector<int> sizes = micro_batches(base_.world);
  PlanChoice choice = base_;
  std::optional<StepEstimate> best;
  const std::size_t failing = first_failing(sizes.size(), [&](std::size_t i) {
    choice.micro_batch = sizes[i];
    auto plan = try_plan(choice);
    if (!plan) return false;
    best = std::move(plan);  // tried ever larger, but for those that do not fit
    return true;
  });
  if (failing == 0) {
    config_error("a micro-batch of 1 does not fit on {} x {}; plan without --fit to see what would help", base_.world,
                 profile_.name);
  }
  choice.micro_batch = sizes[failing - 1];
  return candidate(choice, std::move(*best));
}

std::vector<int> PlanSearch::worlds() const {
  const auto node = static_cast<int>(profile_.devices_per_node());
  std::vector<int> worlds;
  for (int world = 1; world <= kLargestWorld; world += world < node ? 1 : node) {
    const bool possible = !has_file_ || fits_layout(base_.config, world);
    if (possible && shares_out_batch(world, base_.micro_batch)) worlds.push_back(world);
  }
  if (!worlds.empty()) return worlds;
  config_error(
      "no world of up to {} devices shares out --global-batch-size {} in micro-batches of {}{}; whole nodes of {} "
      "devices are tried beyond one node; change one of these",
      kLargestWorld, options_.global_batch_size.value_or(0), base_.micro_batch,
      has_file_ ? fmt::format(" and is divided by the sizes in {}", base_.config.file_name) : "", node);
}

PlanSearch::Candidate PlanSearch::smallest_world() {
  const std::vector<int> worlds = this->worlds();
  PlanChoice choice = base_;
  std::optional<StepEstimate> best;
  std::size_t best_at = worlds.size();
  std::set<std::size_t> tried;
  const auto fails = [&](std::size_t i) {
    tried.insert(i);
    choice.world = worlds[i];
    auto plan = try_plan(choice);
    if (!plan) return true;
    if (i < best_at) {
      best = std::move(plan);
      best_at = i;
    }
    return false;
  };
  const std::size_t found = first_failing(worlds.size(), fails);
  if (!best) {
    config_error("the step does not fit on any world of {} up to {} devices; plan without --fit to see what would help",
                 profile_.name, worlds.back());
  }
  const std::size_t lowest = found - std::min(found, kWorldsChecked);
  for (std::size_t i = found; i-- > lowest;) {
    if (!tried.contains(i)) fails(i);
  }
  choice.world = worlds[best_at];
  return candidate(choice, std::move(*best));
}

}  // namespace loom::plan
