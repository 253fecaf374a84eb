#include "engine/plan/degree_lists.h"

#include <algorithm>
#include <fmt/format.h>

#include "engine/core/error.h"

namespace loom::plan {
namespace {

using sharding::Fsdp2Config;

constexpr std::string_view kUsualExperts = "moe_modules: [\"model.layers.{*}.mlp.experts\"]";

// The key that a search sets is its own place from now on.
void set(Fsdp2Config& config, std::string_view key, int Fsdp2Config::*member, int value) {
  if (config.*member == value) return;
  config.*member = value;
  const config::SourceMark mark{fmt::format("{} {}", key, value)};
  config.places.insert_or_assign(std::string(key), config::Place{mark, mark});
}

std::vector<int> divisors(int number) {
  std::vector<int> all;
  for (int d = 1; d <= number; ++d) {
    if (number % d == 0) all.push_back(d);
  }
  return all;
}

// That of all keys but the degrees.
Degrees without_data(Degrees degrees) {
  degrees.dp_shard = degrees.dp_replicate = 1;
  return degrees;
}

std::string batch_reason(const ChoicePlans& plans, const PlanChoice& choice) {
  const int ranks = data_ranks(choice);
  const auto& size = plans.options().micro_batch_size;
  if (choice.stages != plans.base().stages) {
    return fmt::format("{} groups of devices have no {} micro-batches each, as many as stages", ranks, choice.stages);
  }
  return fmt::format("{} groups of devices cannot share out --global-batch-size {}{}", ranks,
                     plans.options().global_batch_size.value_or(0),
                     size ? fmt::format(" in micro-batches of {}", *size) : "");
}

bool can_share_out(const ChoicePlans& plans, PlanChoice choice) {
  choice.micro_batch = plans.options().micro_batch_size.value_or(1);
  return plans.shares_out_batch(choice);
}

}  // namespace

void count(std::vector<Pruned>& pruned, const std::string& reason) {
  const auto known = std::ranges::find(pruned, reason, &Pruned::reason);
  if (known == pruned.end()) {
    pruned.push_back({reason, 1});
  } else {
    ++known->candidates;
  }
}

std::string reason_of(const std::string& message) {
  const std::size_t place = message.find(": "), from = place == std::string::npos ? 0 : place + 2;
  return message.substr(from, message.find("; ", from) - from);
}

PlanChoice with_degrees(const ChoicePlans& plans, const Degrees& degrees, int sharding_size) {
  PlanChoice choice = plans.base();
  choice.stages = degrees.pp;
  Fsdp2Config& config = choice.config;
  const bool own_tp = degrees.tp == config.tensor_parallel_size;
  set(config, "tensor_parallel_size", &Fsdp2Config::tensor_parallel_size, degrees.tp);
  set(config, "ulysses_parallel_size", &Fsdp2Config::ulysses_parallel_size, degrees.ulysses);
  set(config, "ring_attention_size", &Fsdp2Config::ring_attention_size, degrees.ring);
  set(config, "expert_parallel_size", &Fsdp2Config::expert_parallel_size, degrees.ep);
  set(config, "sharding_size", &Fsdp2Config::sharding_size, sharding_size);
  if (!own_tp) {
    config.sequence_parallel = degrees.tp > 1 && plans.arguments().data.seq_length % degrees.together() == 0;
  }
  if (degrees.ep > 1 && config.moe_modules.empty()) {
    config.moe_modules = sharding::parse_fsdp2_config(kUsualExperts, "moe_modules").moe_modules;
  }
  return choice;
}

DegreeLists::DegreeLists(const ChoicePlans& plans) : plans_(plans), given_(without_data(degrees_of(plans.base()))) {
  const train::ParallelOptions& flags = plans.arguments().parallel;
  const bool context = flags.context_parallel_size > 0;
  axes_ = {{&Degrees::pp, given_.pp > 1 || !plans.options().global_batch_size, {}, {}},
           {&Degrees::tp, flags.tensor_model_parallel_size > 0, {}, {}},
           {&Degrees::ulysses, context, {}, {}},
           {&Degrees::ring, context, {}, {}},
           {&Degrees::ep, flags.expert_model_parallel_size > 0, {}, {}}};
  for (Axis& axis : axes_) axis.possible = axis.checked = {axis.is_fixed ? given_.*axis.degree : 1};
}

// Each by itself, beside degrees that flags give.
void DegreeLists::check_degrees(Axis& axis, int together, std::vector<Pruned>& pruned) {
  if (axis.is_fixed) return;
  const int world = plans_.base().world;
  for (const int degree : divisors(axis.degree == &Degrees::pp ? world : std::min(together, world))) {
    if (std::ranges::find(axis.checked, degree) != axis.checked.end()) continue;
    axis.checked.push_back(degree);
    Degrees alone;
    for (const Axis& other : axes_) alone.*other.degree = other.possible.front();
    alone.*axis.degree = degree;
    try {
      plans_.check(with_degrees(plans_, alone, Fsdp2Config::kAllRanks));
      axis.possible.push_back(degree);
    } catch (const ConfigError& error) {
      count(pruned, reason_of(error.what()));
    }
  }
}

void DegreeLists::add_meshes(const Degrees& degrees, std::vector<Pruned>& pruned, std::vector<PlanChoice>& meshes) {
  if (std::ranges::find(seen_, degrees) != seen_.end()) return;
  seen_.push_back(degrees);
  const int ranks = plans_.base().world / degrees.pp;
  std::vector<int> sizes{Fsdp2Config::kAllRanks};
  const auto node = static_cast<int>(plans_.profile().devices_per_node());
  if (node < ranks && ranks % node == 0 && node % degrees.tp == 0) sizes.push_back(node / degrees.tp);
  for (const int size : sizes) {
    PlanChoice choice = with_degrees(plans_, degrees, size);
    try {
      plans_.check(choice);
    } catch (const ConfigError& error) {
      count(pruned, reason_of(error.what()));
      continue;
    }
    if (!can_share_out(plans_, choice)) {
      count(pruned, batch_reason(plans_, choice));
      continue;
    }
    meshes.push_back(std::move(choice));
  }
}

// What flags give counts only where it can be within.
bool DegreeLists::is_within(const Degrees& degrees, int together) const {
  int fixed = 1, all = 1;
  for (const Axis& axis : axes_) {
    if (axis.degree == &Degrees::ep || axis.degree == &Degrees::pp) continue;
    all *= degrees.*axis.degree;
    if (axis.is_fixed) fixed *= degrees.*axis.degree;
  }
  const int counted = together % fixed == 0 ? all : all / fixed;
  return together % counted == 0 && (axes_.back().is_fixed || together % degrees.ep == 0);
}

std::vector<PlanChoice> DegreeLists::meshes(int together, std::vector<Pruned>& pruned) {
  const bool has_stages = given_.pp > 1 || plans_.options().global_batch_size || plans_.base().world == 1;
  if (seen_.empty() && !has_stages) count(pruned, "stages need several micro-batches, which --global-batch-size gives");
  for (Axis& axis : axes_) check_degrees(axis, together, pruned);
  std::vector<PlanChoice> meshes;
  for (const int pp : axes_[0].possible) {
    for (const int tp : axes_[1].possible) {
      for (const int ulysses : axes_[2].possible) {
        for (const int ring : axes_[3].possible) {
          for (const int ep : axes_[4].possible) {
            const Degrees degrees{.pp = pp, .tp = tp, .ulysses = ulysses, .ring = ring, .ep = ep};
            if (is_within(degrees, together)) add_meshes(degrees, pruned, meshes);
          }
        }
      }
    }
  }
  add_meshes(given_, pruned, meshes);
  return meshes;
}

}  // namespace loom::plan
