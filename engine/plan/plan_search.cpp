#include "engine/plan/plan_search.h"

#include <algorithm>
#include <fmt/ranges.h>

#include "engine/core/error.h"
#include "sharding/config/fsdp2_keys.h"

namespace loom::plan {
namespace {

using sharding::Fsdp2Config;

constexpr int kLargestMicroBatch = 1 << 16;
constexpr int kLargestWorld = 1 << 20;
constexpr std::size_t kRemedies = 3;

std::vector<sharding::ModulePattern> containers(const Fsdp2Config& config) {
  std::vector<sharding::ModulePattern> patterns;
  for (const auto& pattern : config.sub_modules_to_wrap) {
    if (pattern.kind() != sharding::ModulePattern::Kind::kPath) patterns.push_back(pattern);
  }
  return patterns;
}

// The modules that the search recomputes: those of the file, else the containers that it wraps.
std::vector<sharding::ModulePattern> recomputable(const Fsdp2Config& config) {
  return config.recompute_modules.empty() ? containers(config) : config.recompute_modules;
}

// The recorded kind suits every module; a file that names modules names its kind too.
void set_recompute(Fsdp2Config& config, bool on) {
  const bool chosen_by_file = config.places.contains("recompute_modules");
  config.recompute_modules = on ? recomputable(config) : std::vector<sharding::ModulePattern>{};
  if (on && !chosen_by_file) config.use_reentrant = false;
}

// The keys that the search changes, in the order in which a change is told.
constexpr std::string_view kSearched[] = {"sharding_size",           "reshard_after_forward",    "recompute_modules",
                                          "num_to_forward_prefetch", "num_to_backward_prefetch", "offload_to_cpu"};

double ns_per_token(const StepEstimate& plan) {
  return static_cast<double>(plan.time.step_ns) / static_cast<double>(plan.throughput.tokens);
}

// The fastest per token first; of equals the one that came first.
void sort_by_speed(std::vector<PlanSearch::Candidate>& candidates) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& a, const auto& b) { return ns_per_token(a.plan) < ns_per_token(b.plan); });
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

PlanSearch::PlanSearch(const train::TrainArguments& arguments, const train::PretrainCallbacks& callbacks,
                       const virtual_time::HardwareProfile& profile)
    : arguments_(arguments), callbacks_(callbacks), profile_(profile), has_file_(arguments.use_torch_fsdp2) {
  base_.world = arguments.ranks;
  base_.micro_batch = arguments.micro_batch_size;
  if (has_file_) base_.config = sharding::load_fsdp2_config(*arguments.fsdp2_config_path);
}

StepEstimate PlanSearch::plan(const PlanChoice& choice, Capacity capacity) const {
  train::TrainArguments arguments = arguments_;
  arguments.ranks = choice.world;
  arguments.micro_batch_size = choice.micro_batch;
  if (choice.world != base_.world || choice.micro_batch != base_.micro_batch) {
    arguments.global_batch_size = choice.world * choice.micro_batch;
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
    checked.plan.memory.fits = false;
    checked.remedies = remedies(checked.plan);
  }
  return checked;
}

std::vector<Remedy> PlanSearch::remedies(const StepEstimate& too_large) const {
  using Change = void (*)(PlanChoice&);
  std::vector<Change> changes;
  const auto propose = [&](Change change) {
    PlanChoice choice = base_;
    change(choice);
    if (choice != base_) changes.push_back(change);
  };
  if (has_file_) {
    propose([](PlanChoice& c) { c.config.sharding_size = Fsdp2Config::kAllRanks; });
    propose([](PlanChoice& c) { c.config.reshard_after_forward = true; });
    if (!recomputable(base_.config).empty()) propose([](PlanChoice& c) { set_recompute(c.config, true); });
    propose([](PlanChoice& c) { c.config.num_to_forward_prefetch = c.config.num_to_backward_prefetch = 0; });
    propose([](PlanChoice& c) { c.config.offload_to_cpu = true; });
  }
  propose([](PlanChoice& c) { c.micro_batch = std::max(1, c.micro_batch / 2); });

  std::vector<Candidate> fitting;
  const auto try_changes = [&](Change one, Change other) {
    PlanChoice choice = base_;
    one(choice);
    other(choice);
    if (auto plan = try_plan(choice)) fitting.push_back(candidate(choice, std::move(*plan)));
  };
  for (const Change change : changes) try_changes(change, [](PlanChoice&) {});
  // Pairs only when no single change is enough.
  const bool enough = !fitting.empty();
  for (std::size_t i = 0; !enough && i < changes.size(); ++i) {
    for (std::size_t j = i + 1; j < changes.size(); ++j) try_changes(changes[i], changes[j]);
  }
  sort_by_speed(fitting);
  std::vector<Remedy> remedies;
  for (const Candidate& c : fitting) {
    if (remedies.size() == kRemedies) break;
    remedies.push_back({c.change, too_large.memory.reserved_bytes - c.plan.memory.reserved_bytes, c.plan.time.step_ns});
  }
  return remedies;
}

std::vector<PlanSearch::Candidate> PlanSearch::sweep() {
  if (!has_file_) config_error("--sweep changes keys of a file; give --use-torch-fsdp2 --fsdp2-config-path FILE");
  std::vector<int> sizes{Fsdp2Config::kAllRanks};
  const auto node = static_cast<int>(profile_.devices_per_node());
  if (node < base_.world && base_.world % node == 0) sizes.push_back(node);
  std::vector<Candidate> fitting;
  for (const int size : sizes) {
    for (const bool recompute : {false, true}) {
      if (recompute && recomputable(base_.config).empty()) continue;
      for (const bool reshard : {true, false}) {
        for (const int prefetch : {0, 1, 2}) {
          for (int micro_batch = 1; micro_batch <= kLargestMicroBatch; micro_batch *= 2) {
            PlanChoice choice = base_;
            choice.config.sharding_size = size;
            set_recompute(choice.config, recompute);
            choice.config.reshard_after_forward = reshard;
            choice.config.num_to_forward_prefetch = choice.config.num_to_backward_prefetch = prefetch;
            choice.micro_batch = micro_batch;
            auto plan = try_plan(choice);
            if (!plan) break;  // larger ones need more
            plan->run = {};    // hundreds of recordings would not be small
            fitting.push_back(candidate(choice, std::move(*plan)));
          }
        }
      }
    }
  }
  sort_by_speed(fitting);
  return fitting;
}

PlanSearch::Candidate PlanSearch::largest_micro_batch() {
  PlanChoice choice = base_;
  choice.micro_batch = 1;
  std::optional<StepEstimate> best = try_plan(choice);
  if (!best) {
    config_error("a micro-batch of 1 does not fit on {} x {}; plan without --fit to see what would help", base_.world,
                 profile_.name);
  }
  int fits = 1;
  int too_large = 2;
  const auto try_size = [&](int size) {
    choice.micro_batch = size;
    auto plan = try_plan(choice);
    if (!plan) return false;
    best = std::move(plan);
    fits = size;
    return true;
  };
  while (too_large <= kLargestMicroBatch && try_size(too_large)) too_large *= 2;
  while (too_large - fits > 1) {
    const int middle = fits + (too_large - fits) / 2;
    if (!try_size(middle)) too_large = middle;
  }
  choice.micro_batch = fits;
  return candidate(choice, std::move(*best));
}

PlanSearch::Candidate PlanSearch::smallest_world() {
  PlanChoice choice = base_;
  const auto node = static_cast<int>(profile_.devices_per_node());
  // Whole nodes once a node is not enough.
  const auto next = [&](int world) { return world < node ? std::min(2 * world, node) : 2 * world; };
  std::optional<StepEstimate> best;
  int too_small = 0;
  int world = 1;
  for (; world <= kLargestWorld; world = next(world)) {
    choice.world = world;
    if ((best = try_plan(choice))) break;
    too_small = world;
  }
  if (!best) {
    config_error("the step does not fit on any world of {} up to {} devices; plan without --fit to see what would help",
                 profile_.name, kLargestWorld);
  }
  while (world > node && world - too_small > node) {
    const int middle = too_small + (world - too_small) / node / 2 * node;
    choice.world = middle;
    if (auto plan = try_plan(choice)) {
      best = std::move(plan);
      world = middle;
    } else {
      too_small = middle;
    }
  }
  choice.world = world;
  return candidate(choice, std::move(*best));
}

}  // namespace loom::plan
