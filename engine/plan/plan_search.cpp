#include "engine/plan/plan_search.h"

#include <algorithm>
#include <fmt/format.h>
#include <functional>
#include <set>

#include "engine/core/error.h"
#include "engine/plan/config_changes.h"
#include "engine/plan/first_failing.h"
#include "engine/plan/sweep_variants.h"

namespace loom::plan {
namespace {

using sharding::Fsdp2Config;

constexpr int kLargestWorld = 1 << 20;
constexpr std::size_t kRemedies = 3;
constexpr std::size_t kTogether = 3;        // changes of a remedy, at most
constexpr std::size_t kWorldsChecked = 32;  // below the smallest world found

// The file's sizes fit a world (validate_against_world says why where they do not).
bool fits_layout(const Fsdp2Config& config, int world) {
  if (world % config.tensor_parallel_size != 0) return false;
  const int ranks = world / config.tensor_parallel_size;
  const int shard = config.sharding_size == Fsdp2Config::kAllRanks ? ranks : config.sharding_size;
  return ranks % shard == 0 && config.reshard_after_forward.on(shard) && world % config.expert_parallel_size == 0 &&
         ranks % config.context_ranks() == 0;
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

// ConfigError if there is none.
std::vector<int> micro_batch_sizes(const ChoicePlans& plans) {
  const PlanChoice& base = plans.base();
  std::vector<int> sizes = plans.micro_batch_sizes(base);
  if (!sizes.empty()) return sizes;
  const int unit = data_ranks(base);
  config_error("--global-batch-size is {}, which {} {} cannot share out; use a multiple of {}",
               plans.options().global_batch_size.value_or(0), unit,
               unit == base.world ? "devices" : "groups of devices", unit);
}

}  // namespace

PlanSearch::PlanSearch(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks,
                       const virtual_time::HardwareProfile& profile, SearchOptions options)
    : plans_(arguments, callbacks, profile, options) {}

CheckedEstimate PlanSearch::check() {
  CheckedEstimate checked;
  try {
    checked.plan = plans_.plan(plans_.base(), Capacity::kOfTheProfile);
  } catch (const OutOfMemoryError& error) {
    checked.out_of_memory = error.what();
    checked.plan = plans_.plan(plans_.base(), Capacity::kLifted);
    checked.plan.memory.fits = dynamic_cast<const HostMemoryError*>(&error) != nullptr;
    checked.remedies = remedies(checked.plan);
  }
  return checked;
}

std::vector<PlanSearch::Change> PlanSearch::proposals(const StepEstimate& too_large) const {
  std::vector<Change> changes;
  const auto propose = [&](const Change& change) {
    PlanChoice choice = plans_.base();
    change(choice);
    if (choice != plans_.base()) changes.push_back(change);
  };
  if (plans_.has_file()) {
    propose([](PlanChoice& c) { c.config.sharding_size = Fsdp2Config::kAllRanks; });
    propose([](PlanChoice& c) { c.config.reshard_after_forward = true; });
    if (plans_.may_recompute()) {
      propose([](PlanChoice& c) { set_selected_recompute(c.config); });
      propose([](PlanChoice& c) { set_recompute(c.config, true); });
      propose([](PlanChoice& c) { set_swapped_recompute(c.config); });
    }
    propose([](PlanChoice& c) { c.config.num_to_forward_prefetch = c.config.num_to_backward_prefetch = 0; });
    propose([fits = too_large.memory.host_fits](PlanChoice& c) { c.config.offload_to_cpu = fits; });
  }
  propose([this](PlanChoice& c) {
    PlanChoice smaller = c;
    smaller.micro_batch = std::max(1, c.micro_batch / 2);
    while (smaller.micro_batch > 0 && !plans_.shares_out_batch(smaller)) --smaller.micro_batch;
    if (smaller.micro_batch > 0) c = smaller;
  });
  return changes;
}

std::vector<PlanSearch::Change> PlanSearch::more_proposals() const {
  std::vector<Change> changes;
  if (plans_.has_file()) {
    for (const PlanChoice& variant : recompute_variants(plans_, plans_.base())) {
      changes.emplace_back([config = variant.config](PlanChoice& c) { c.config = config; });
    }
  }
  for (const PlanChoice& variant : loss_variants(plans_, plans_.base())) {
    changes.emplace_back([chunk = variant.loss_chunk_size](PlanChoice& c) { c.loss_chunk_size = chunk; });
  }
  PlanChoice least = plans_.base();
  least.micro_batch = 1;
  if (plans_.shares_out_batch(least) && plans_.base().micro_batch > 2) {
    changes.emplace_back([](PlanChoice& c) { c.micro_batch = 1; });
  }
  return changes;
}

std::vector<Candidate> PlanSearch::fitting_changes() const {
  const std::vector<Change> changes = proposals(plans_.plan(plans_.base(), Capacity::kLifted));
  std::vector<Change> all = more_proposals();
  all.insert(all.end(), changes.begin(), changes.end());
  std::vector<Candidate> single = fitting(all, 1, 1);
  return single.empty() ? fitting(changes, 2, 2) : single;
}

std::vector<Candidate> PlanSearch::fitting(const std::vector<Change>& changes, std::size_t least,
                                           std::size_t most) const {
  std::vector<Candidate> fitting;
  for (std::size_t together = least; together <= most && fitting.empty(); ++together) {
    for_each_choice(changes.size(), together, [&](const std::vector<std::size_t>& chosen) {
      PlanChoice choice = plans_.base();
      for (const std::size_t change : chosen) changes[change](choice);
      const auto same = [&](const Candidate& c) { return c.choice == choice; };
      if (std::ranges::any_of(fitting, same)) return;
      try {
        if (auto plan = plans_.try_plan(choice)) fitting.push_back(plans_.candidate(choice, std::move(*plan)));
      } catch (const ConfigError&) {  // a change that the job cannot have is no proposal
      }
    });
  }
  sort_by_speed(fitting);
  return fitting;
}

std::vector<Remedy> PlanSearch::remedies(const StepEstimate& too_large) const {
  std::vector<Remedy> remedies;
  for (const Candidate& c : fitting(proposals(too_large), 1, kTogether)) {
    if (remedies.size() == kRemedies) break;
    remedies.push_back(
        {c.change, too_large.memory.peak_reserved_bytes - c.plan.memory.peak_reserved_bytes, c.plan.time.step_ns});
  }
  return remedies;
}

PlanSearch::Candidate PlanSearch::largest_micro_batch() {
  const std::vector<int> sizes = micro_batch_sizes(plans_);
  PlanChoice choice = plans_.base();
  std::optional<StepEstimate> best;
  const std::size_t failing = first_failing(sizes.size(), [&](std::size_t i) {
    choice.micro_batch = sizes[i];
    auto plan = plans_.try_plan(choice);
    if (!plan) return false;
    best = std::move(plan);  // tried ever larger, but for those that do not fit
    return true;
  });
  if (failing == 0) {
    config_error("a micro-batch of {} does not fit on {} x {}; plan without --fit to see what would help",
                 sizes.front(), plans_.base().world, plans_.profile().name);
  }
  choice.micro_batch = sizes[failing - 1];
  return plans_.candidate(choice, std::move(*best));
}

std::vector<int> PlanSearch::worlds() const {
  const PlanChoice& base = plans_.base();
  const auto node = static_cast<int>(plans_.profile().devices_per_node());
  std::vector<int> worlds;
  for (int world = 1; world <= kLargestWorld; world += world < node ? 1 : node) {
    const bool possible =
        world % base.stages == 0 && (!plans_.has_file() || fits_layout(base.config, world / base.stages));
    PlanChoice choice = base;
    choice.world = world;
    if (possible && plans_.shares_out_batch(choice)) worlds.push_back(world);
  }
  if (!worlds.empty()) return worlds;
  config_error(
      "no world of up to {} devices shares out --global-batch-size {} in micro-batches of {}{}; whole nodes of {} "
      "devices are tried beyond one node; change one of these",
      kLargestWorld, plans_.options().global_batch_size.value_or(0), base.micro_batch,
      plans_.has_file() ? fmt::format(" and is divided by the sizes in {}", base.config.file_name) : "", node);
}

PlanSearch::Candidate PlanSearch::smallest_world() {
  const std::vector<int> worlds = this->worlds();
  PlanChoice choice = plans_.base();
  std::optional<StepEstimate> best;
  std::size_t best_at = worlds.size();
  std::set<std::size_t> tried;
  const auto fails = [&](std::size_t i) {
    tried.insert(i);
    choice.world = worlds[i];
    auto plan = plans_.try_plan(choice);
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
                 plans_.profile().name, worlds.back());
  }
  const std::size_t lowest = found - std::min(found, kWorldsChecked);
  for (std::size_t i = found; i-- > lowest;) {
    if (!tried.contains(i)) fails(i);
  }
  choice.world = worlds[best_at];
  return plans_.candidate(choice, std::move(*best));
}

}  // namespace loom::plan
