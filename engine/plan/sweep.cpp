#include "engine/plan/sweep.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>

#include "engine/core/error.h"
#include "engine/core/rounding.h"
#include "engine/plan/config_changes.h"
#include "engine/plan/degree_lists.h"
#include "engine/plan/first_failing.h"
#include "engine/plan/on_all_cores.h"
#include "engine/plan/sweep_variants.h"

namespace loom::plan {
namespace {

using sharding::Fsdp2Config;

constexpr std::size_t kBest = 3;           // meshes that are searched, and configurations that are refined
constexpr std::size_t kRefinedSizes = 64;  // micro-batches of one of these
constexpr std::size_t kWhole = 10;         // steps of many micro-batches that are planned whole
constexpr int kSurveyed = 1;               // micro-batches of a step in the survey, for each stage
constexpr int kSearched = 2;               // and in the search
constexpr double kPrecision = 0.125;       // of the most sequences in the search
constexpr double kDoubled = 1;             // the same: 1, 2, 4, ... alone
constexpr double kWorthwhile = 0.99;       // of the time of a token: twice the micro-batch takes less

// A configuration that fits, planned whole or with a part of its micro-batches.
struct Row {
  PlanChoice choice;
  StepEstimate plan;
  double ns_per_token = 0;  // of the whole step
  bool whole = true;
};

std::int64_t optimizer_ns(const StepEstimate& plan) {
  const auto found = std::ranges::find(plan.time.phases, std::string("optimizer"), &PhaseTime::phase);
  return found == plan.time.phases.end() ? 0 : found->compute_ns;
}

// All micro-batches take as long as those that were planned. A step of a pipeline takes the time of stages - 1 more,
// shared out among the stages of a rank.
double ns_per_token(const StepEstimate& plan, const PlanChoice& choice, int micro_batches) {
  const auto optimizer = static_cast<double>(optimizer_ns(plan));
  const double part = static_cast<double>(plan.micro_batches) / micro_batches;
  const double bubble = static_cast<double>(choice.stages - 1) / std::max(1, choice.stages_per_rank);
  const double longer = (micro_batches + bubble) / (static_cast<double>(plan.micro_batches) + bubble);
  const double step = optimizer + (static_cast<double>(plan.time.step_ns) - optimizer) * longer;
  return step * part / static_cast<double>(plan.throughput.tokens);
}

bool is_faster(const Row& a, const Row& b) { return a.ns_per_token < b.ns_per_token; }
void sort_by_speed(std::vector<Row>& rows) { std::stable_sort(rows.begin(), rows.end(), is_faster); }

// Keys of one mesh, with the micro-batches that were tried.
struct Combination {
  PlanChoice choice = {};
  std::vector<int> sizes = {};
  std::vector<Row> rows = {};
  std::map<std::size_t, bool> tried = {};  // indexes of `sizes`, and whether they fit
  std::optional<std::string> refused = {};

  const Row* fastest() const { return rows.empty() ? nullptr : &*std::ranges::min_element(rows, is_faster); }
};

class Sweeper {
 public:
  explicit Sweeper(const ChoicePlans& plans) : plans_(plans), degrees_(plans) {}

  Sweep run() {
    survey();
    std::vector<Combination> searched = search(best_meshes());
    vary(searched);
    refine(searched);
    for (Combination& combination : searched) take(combination);
    return finished();
  }

 private:
  int world() const { return plans_.base().world; }
  Degrees degrees(const PlanChoice& choice) const { return degrees_of(choice); }

  // A mesh of the survey: all but dp_*.
  struct Mesh {
    Degrees degrees;
    double ns_per_token = 0;
  };

  // False where it does not fit.
  bool try_size(Combination& combination, std::size_t i, int micro_batches_of_stage) const {
    const auto [known, is_new] = combination.tried.try_emplace(i, true);
    if (!is_new) return known->second;
    PlanChoice choice = combination.choice;
    choice.micro_batch = combination.sizes[i];
    const int all = plans_.micro_batches(choice);
    const int micro_batches = micro_batches_of_stage * choice.stages;
    auto plan = plans_.try_plan(choice, micro_batches);
    if (!plan) return known->second = false;
    plan->runs.clear();  // hundreds of recordings would not be small
    const double ns = ns_per_token(*plan, choice, all);
    combination.rows.push_back({std::move(choice), std::move(*plan), ns, all <= micro_batches});
    return true;
  }

  std::vector<int> sizes_of(const PlanChoice& choice) const {
    const auto& fixed = plans_.options().micro_batch_size;
    return fixed ? std::vector<int>{*fixed} : plans_.micro_batch_sizes(choice);
  }

  // 1, 2, 4, ... sequences from `first` on, while each is worthwhile. Whether the last one did not fit.
  bool double_sizes(Combination& combination, std::size_t& first) const {
    double before = 0;
    for (std::size_t count = first + 1; count <= combination.sizes.size(); count *= 2) {
      if (!try_size(combination, count - 1, kSurveyed)) {
        first = count - 1;
        return true;
      }
      const double now = combination.rows.back().ns_per_token;
      if (before > 0 && now > before * kWorthwhile) break;
      before = now;
    }
    return false;
  }

  Combination surveyed(const PlanChoice& mesh) const {
    Combination combination{.choice = mesh, .sizes = sizes_of(mesh)};
    try {
      set_recompute(combination.choice.config, false);
      std::size_t first = 0;
      const bool kept = double_sizes(combination, first);
      if (!kept || !plans_.may_recompute()) return combination;
      set_recompute(combination.choice.config, true);
      combination.tried.clear();
      double_sizes(combination, first);
    } catch (const ConfigError& error) {
      combination.refused = reason_of(error.what());
    }
    return combination;
  }

  void survey() {
    const auto node = std::max(1, static_cast<int>(plans_.profile().devices_per_node()));
    for (result_.together = std::min(node, world());; result_.together = std::min(2 * result_.together, world())) {
      std::vector<PlanChoice> meshes = degrees_.meshes(result_.together, result_.pruned);
      while (!meshes.empty()) survey(taken_stages(meshes));
      if (result_.meshes_that_fit > 0 || result_.together == world()) return;
    }
  }

  void survey(const std::vector<PlanChoice>& meshes) {
    std::vector<Combination> combinations(meshes.size());
    on_all_cores(meshes.size(), [&](std::size_t i) { combinations[i] = surveyed(meshes[i]); });
    for (Combination& combination : combinations) count_mesh(combination);
  }

  // Takes the meshes with the fewest stages out, but for those that gained nothing from fewer more stages.
  std::vector<PlanChoice> taken_stages(std::vector<PlanChoice>& meshes) {
    const int stages = std::ranges::min(meshes, {}, &PlanChoice::stages).stages;
    std::vector<PlanChoice> taken;
    std::erase_if(meshes, [&](const PlanChoice& mesh) {
      if (mesh.stages != stages) return false;
      if (mesh.stages == plans_.base().stages || may_gain(mesh)) {
        taken.push_back(mesh);
      } else {
        count(result_.pruned, "more stages gained nothing over fewer with the same other degrees");
      }
      return true;
    });
    return taken;
  }

  // Of the meshes surveyed with fewer stages and its other degrees, that with the most was the fastest, or none fits.
  bool may_gain(const PlanChoice& mesh) const {
    Degrees others = degrees(mesh);
    std::optional<Mesh> most, fastest;
    for (const Mesh& known : meshes_) {
      others.pp = known.degrees.pp;
      others.dp_shard = others.dp_replicate = 1;
      if (!(known.degrees == others)) continue;
      if (!most || known.degrees.pp > most->degrees.pp) most = known;
      if (!fastest || known.ns_per_token < fastest->ns_per_token) fastest = known;
    }
    return !most || most->degrees.pp == fastest->degrees.pp;
  }

  void count_mesh(Combination& combination) {
    if (combination.refused) return count(result_.pruned, *combination.refused);
    ++result_.meshes;
    const Row* best = combination.fastest();
    if (best == nullptr) return;
    ++result_.meshes_that_fit;
    Degrees mesh = degrees(best->choice);
    mesh.dp_shard = mesh.dp_replicate = 1;
    meshes_.push_back({mesh, best->ns_per_token});
    take(combination);
  }

  std::vector<Mesh> best_meshes() {
    std::ranges::stable_sort(meshes_, {}, &Mesh::ns_per_token);
    std::vector<Mesh> best;
    for (const Mesh& mesh : meshes_) {
      if (best.size() < kBest && std::ranges::find(best, mesh.degrees, &Mesh::degrees) == best.end()) {
        best.push_back(mesh);
      }
    }
    return best;
  }

  // Each with about the most sequences that fit; what the model cannot have is left out.
  static void erase_unfit(std::vector<Combination>& combinations) {
    std::erase_if(combinations, [](const Combination& c) { return c.rows.empty(); });
  }

  void try_all(std::vector<Combination>& combinations, double precision = kPrecision) const {
    on_all_cores(combinations.size(), [&](std::size_t c) {
      Combination& combination = combinations[c];
      if (combination.sizes.empty()) combination.sizes = sizes_of(combination.choice);
      try {
        first_failing(
            combination.sizes.size(), [&](std::size_t i) { return try_size(combination, i, kSearched); }, precision);
      } catch (const ConfigError& error) {
        combination.refused = reason_of(error.what());
      }
    });
  }

  std::vector<Combination> search(const std::vector<Mesh>& meshes) {
    std::vector<Combination> combinations;
    for (const Mesh& mesh : meshes) {
      for (const int size : {Fsdp2Config::kAllRanks, node_size(mesh.degrees)}) {
        for (const bool recompute : {false, true}) {
          for (const bool reshard : {true, false}) {
            if ((recompute && !plans_.may_recompute()) || size < 0) continue;
            PlanChoice choice = with_degrees(plans_, mesh.degrees, size);
            set_recompute(choice.config, recompute);
            choice.config.reshard_after_forward = reshard;
            combinations.push_back({.choice = std::move(choice)});
          }
        }
      }
    }
    try_all(combinations);
    erase_unfit(combinations);
    return combinations;
  }

  // Ranks that shard within a node; -1: no fewer than all.
  int node_size(const Degrees& mesh) const {
    const auto node = static_cast<int>(plans_.profile().devices_per_node());
    const int ranks = world() / mesh.pp;  // of a stage
    return node < ranks && ranks % node == 0 && node % mesh.tp == 0 ? node / mesh.tp : -1;
  }

  // Of each mesh the fastest combination. Sorts `searched`; the pointers hold until it changes.
  std::vector<const Combination*> best_of_meshes(std::vector<Combination>& searched) const {
    sort_combinations(searched);
    std::vector<Degrees> seen;
    std::vector<const Combination*> best;
    for (const Combination& combination : searched) {
      Degrees mesh = degrees(combination.choice);
      mesh.dp_shard = mesh.dp_replicate = 1;
      if (std::ranges::find(seen, mesh) != seen.end()) continue;
      seen.push_back(mesh);
      best.push_back(&combination);
    }
    return best;
  }

  // Of each mesh the best configuration with other sharding sizes; of the best by then with other recompute, and so on.
  void vary(std::vector<Combination>& searched) {
    std::vector<Combination> of_stages, of_sharding, of_recompute, of_loss, of_accumulation, of_prefetch;
    for (const Combination* best : best_of_meshes(searched)) {
      add_variants(pipeline_variants(plans_, best->choice), of_stages);
    }
    join(of_stages, searched, kPrecision);
    for (const Combination* best : best_of_meshes(searched)) {
      add_variants(sharding_variants(plans_, best->choice), of_sharding);
    }
    join(of_sharding, searched, kPrecision);
    for (const Combination* best : best_of_meshes(searched)) {
      add_memory(*best, recompute_variants(plans_, best->choice), of_recompute);
    }
    join(of_recompute, searched, kDoubled);
    for (const Combination* best : best_of_meshes(searched)) {
      add_memory(*best, loss_variants(plans_, best->choice), of_loss);
    }
    join(of_loss, searched, kDoubled);
    for (const Combination* best : best_of_meshes(searched)) add_accumulation(*best, of_accumulation);
    join(of_accumulation, searched, kPrecision);
    for (const Combination* best : best_of_meshes(searched)) add_prefetch(*best, of_prefetch);
    join(of_prefetch, searched, kPrecision);
  }

  // Tries those that are new; what the model cannot have is counted.
  void join(std::vector<Combination>& variants, std::vector<Combination>& searched, double precision) {
    std::erase_if(variants, [&](const Combination& variant) {
      return std::ranges::any_of(searched, [&](const Combination& c) { return c.choice == variant.choice; });
    });
    try_all(variants, precision);
    for (const Combination& variant : variants) {
      if (variant.refused) count(result_.pruned, *variant.refused);
    }
    erase_unfit(variants);
    std::ranges::move(variants, std::back_inserter(searched));
  }

  static void add_variants(const std::vector<PlanChoice>& choices, std::vector<Combination>& variants) {
    for (const PlanChoice& choice : choices) variants.push_back({.choice = choice});
  }

  void add_memory(const Combination& best, const std::vector<PlanChoice>& choices, std::vector<Combination>& variants) {
    if (is_limited_by_memory(best)) return add_variants(choices, variants);
    for (std::size_t i = 0; i < choices.size(); ++i) {
      count(result_.pruned, "recompute of a part, swap or a loss in chunks would free memory that gains nothing");
    }
  }

  // It recomputes, or its fastest micro-batch is the largest that fits and still takes less time than half of it.
  static bool is_limited_by_memory(const Combination& best) {
    if (!best.choice.config.recompute_modules.empty()) return true;
    const bool all_fit = std::ranges::all_of(best.tried, [](const auto& size) { return size.second; });
    const Row& fastest = *best.fastest();
    if (all_fit) return false;
    return std::ranges::all_of(best.rows, [&](const Row& row) {
      if (row.choice.micro_batch > fastest.choice.micro_batch) return false;
      return 2 * row.choice.micro_batch > fastest.choice.micro_batch ||
             fastest.ns_per_token < row.ns_per_token * kWorthwhile;
    });
  }

  // These and prefetch with the fastest micro-batch alone.
  void add_accumulation(const Combination& best, std::vector<Combination>& variants) const {
    const int micro_batch = best.fastest()->choice.micro_batch;
    PlanChoice choice = best.choice;
    choice.micro_batch = micro_batch;
    for (PlanChoice& variant : accumulation_variants(plans_, choice)) {
      variant.micro_batch = best.choice.micro_batch;
      variants.push_back({.choice = std::move(variant), .sizes = {micro_batch}});
    }
  }

  static void add_prefetch(const Combination& best, std::vector<Combination>& variants) {
    for (const int groups : {0, 1, 2}) {
      PlanChoice variant = best.choice;
      variant.config.num_to_forward_prefetch = variant.config.num_to_backward_prefetch = groups;
      variants.push_back({.choice = std::move(variant), .sizes = {best.fastest()->choice.micro_batch}});
    }
  }

  static void sort_combinations(std::vector<Combination>& combinations) {
    std::stable_sort(combinations.begin(), combinations.end(),
                     [](const Combination& a, const Combination& b) { return is_faster(*a.fastest(), *b.fastest()); });
  }

  // To all sizes, where few were tried.
  void widen(Combination& combination) const {
    std::vector<int> all = sizes_of(combination.choice);
    if (all.size() == combination.sizes.size()) return;
    combination.sizes = std::move(all);
    combination.tried.clear();
    for (const Row& row : combination.rows) {
      const auto at = std::ranges::find(combination.sizes, row.choice.micro_batch);
      combination.tried.emplace(static_cast<std::size_t>(at - combination.sizes.begin()), true);
    }
  }

  // All micro-batches of the best that fit, or kRefinedSizes of them.
  void refine(std::vector<Combination>& searched) {
    sort_combinations(searched);
    on_all_cores(std::min(kBest, searched.size()), [&](std::size_t c) {
      Combination& combination = searched[c];
      widen(combination);
      const std::size_t fitting =
          first_failing(combination.sizes.size(), [&](std::size_t i) { return try_size(combination, i, kSearched); });
      const std::size_t stride = std::max<std::size_t>(1, ceil_div(fitting, kRefinedSizes));
      for (std::size_t i = stride - 1; i < fitting; i += stride) try_size(combination, i, kSearched);
    });
  }

  void take(Combination& combination) {
    for (Row& row : combination.rows) {
      const auto same = std::ranges::find(rows_, row.choice, &Row::choice);
      if (same == rows_.end()) {
        rows_.push_back(std::move(row));
      } else if (!same->whole) {
        *same = std::move(row);  // of more micro-batches
      }
    }
    combination.rows.clear();
  }

  // The best of all, and of each mesh.
  std::set<std::size_t> to_be_planned_whole() const {
    std::set<std::size_t> wanted;
    std::vector<Degrees> meshes;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const Degrees mesh = degrees(rows_[i].choice);
      const bool is_new = meshes.size() < kBest && std::ranges::find(meshes, mesh) == meshes.end();
      if (is_new) meshes.push_back(mesh);
      if (!rows_[i].whole && (is_new || i < kWhole)) wanted.insert(i);
    }
    return wanted;
  }

  void plan_whole() {
    const std::set<std::size_t> wanted = to_be_planned_whole();
    const std::vector<std::size_t> numbers(wanted.begin(), wanted.end());
    std::vector<char> fits(numbers.size(), 1);
    on_all_cores(numbers.size(), [&](std::size_t n) {
      Row& row = rows_[numbers[n]];
      auto plan = plans_.try_plan(row.choice);
      fits[n] = plan ? 1 : 0;
      if (!plan) return;
      plan->runs.clear();
      row.ns_per_token = ns_per_token(*plan, row.choice, static_cast<int>(plan->micro_batches));
      row.plan = std::move(*plan);
      row.whole = true;
    });
    for (std::size_t n = numbers.size(); n-- > 0;) {
      if (fits[n] == 0) rows_.erase(rows_.begin() + static_cast<std::ptrdiff_t>(numbers[n]));
    }
  }

  Sweep finished() {
    sort_by_speed(rows_);
    plan_whole();
    sort_by_speed(rows_);
    for (Row& row : rows_) {
      if (row.whole) {
        result_.fitting.push_back(plans_.candidate(row.choice, std::move(row.plan)));
      } else {
        ++result_.fitting_in_part;
      }
    }
    add_best();
    add_pareto();
    return std::move(result_);
  }

  void add_pareto() {
    const auto speed = [](const Candidate& c) { return c.plan.throughput.tokens_per_s_per_device; };
    const auto bytes = [](const Candidate& c) { return c.plan.memory.peak_reserved_bytes; };
    for (std::size_t i = 0; i < result_.fitting.size(); ++i) {
      const Candidate& row = result_.fitting[i];
      const bool beaten = std::ranges::any_of(result_.fitting, [&](const Candidate& other) {
        return speed(other) >= speed(row) && bytes(other) <= bytes(row) &&
               (speed(other) > speed(row) || bytes(other) < bytes(row));
      });
      if (!beaten) result_.pareto.push_back(i);
    }
  }

  void add_best() {
    for (std::size_t i = 0; i < result_.fitting.size() && result_.best.size() < kBest; ++i) {
      const Degrees mesh = degrees(result_.fitting[i].choice);
      if (std::ranges::find(result_.best, mesh, &BestMesh::degrees) != result_.best.end()) continue;
      BestMesh best{.row = i, .degrees = mesh};
      for (const virtual_time::AxisTime& axis : result_.fitting[i].plan.time.exposed) {
        if (axis.exposed_ns > 0) best.exposed.push_back(axis);
      }
      result_.best.push_back(std::move(best));
    }
    for (std::size_t i = 0; i < result_.best.size() && result_.best.size() > 1; ++i) {
      compare(result_.best[i], result_.best[i == 0 ? 1 : 0]);
    }
  }

  void compare(BestMesh& best, const BestMesh& with) const;

  const ChoicePlans& plans_;
  DegreeLists degrees_;
  Sweep result_;
  std::vector<Mesh> meshes_;
  std::vector<Row> rows_;
};

double& time_of(std::vector<TokenTime>& parts, const std::string& part) {
  const auto found = std::ranges::find(parts, part, &TokenTime::part);
  return found == parts.end() ? parts.emplace_back(TokenTime{part, 0}).ns : found->ns;
}

void Sweeper::compare(BestMesh& best, const BestMesh& with) const {
  const StepEstimate &plan = result_.fitting[best.row].plan, &other = result_.fitting[with.row].plan;
  best.against = with.row;
  best.differences = token_time(plan);
  double own = 0, others = 0;
  for (const TokenTime& part : best.differences) own += part.ns;
  for (const TokenTime& part : token_time(other)) {
    others += part.ns;
    time_of(best.differences, part.part) -= part.ns;
  }
  best.longer = own / others - 1;
  std::ranges::stable_sort(best.differences, std::ranges::greater{}, [](const TokenTime& t) { return std::abs(t.ns); });
  best.more_bytes = plan.memory.peak_reserved_bytes - other.memory.peak_reserved_bytes;
}

}  // namespace

std::vector<TokenTime> token_time(const StepEstimate& plan) {
  const double tokens = static_cast<double>(plan.throughput.tokens) / plan.world;
  const virtual_time::Breakdown& b = plan.time.breakdown;
  std::vector<TokenTime> parts{{"compute", static_cast<double>(b.compute_ns) / tokens}};
  for (const virtual_time::AxisTime& axis : plan.time.exposed) {
    parts.push_back({"exposed " + axis.axis, static_cast<double>(axis.exposed_ns) / tokens});
  }
  parts.push_back({"exposed copies", static_cast<double>(b.exposed_copy_ns) / tokens});
  parts.push_back({"idle", static_cast<double>(b.idle_ns) / tokens});
  return parts;
}

Sweep sweep(const ChoicePlans& plans) {
  if (!plans.has_file()) {
    config_error("--sweep changes keys of a file; give --use-torch-fsdp2 --fsdp2-config-path FILE");
  }
  plans.check(plans.base());
  return Sweeper(plans).run();
}

}  // namespace loom::plan
