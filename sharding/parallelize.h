// apply_fsdp2: an fsdp2_config.yaml applied to a model. The order is the design: check everything, wrap bottom-up, the
// root last, prefetch lists.
//
// Wrapping   post-order over the module tree, so that a parent owns what its wrapped descendants do not; the order in
//            the list does not matter.
// Prefetch   candidates are the listed modules in pre-order of registration, the root excluded. Forward: the next n;
//            backward: the next n of the reversed list. 0 leaves the implicit order (backward: one group ahead in the
//            order of execution).
// Errors     ConfigError before anything is allocated, on every rank alike.
// Source     MindSpeed-MM, mixin route.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/process_group.h"
#include "engine/nn/module.h"
#include "sharding/config/effective_config.h"
#include "sharding/config/fsdp2_config.h"
#include "sharding/policy.h"

namespace loom::sharding {

// The configuration resolved against a model and a world: nothing is allocated or changed yet.
struct ResolvedFsdp2Config {
  WorldLayout layout;
  FullyShardOptions options;            // the axes are set by apply_fsdp2
  std::vector<std::string> wrapped;     // paths, pre-order of registration
  std::vector<std::string> ignored;     // paths of modules whose parameters are left out of sharding
  std::vector<std::string> recomputed;  // the same; who composes recompute with sharding wraps them first
  bool use_reentrant = true;            // the kind of that recompute
  int num_to_forward_prefetch = 0;
  int num_to_backward_prefetch = 0;
  std::map<std::string, std::string> written_as;  // of paths that were selected by an alias: the name in the file
  std::vector<std::string> warnings;
  std::vector<ConfigEntry> entries;  // every key of the file as it takes effect: what all ranks must have alike
};
ResolvedFsdp2Config resolve_fsdp2(nn::Module& model, const Fsdp2Config& config, int world_size, GatherLayout layout);

// --- the pieces of apply_fsdp2, for who does something else in between ---

// The plan's options with what the model and the world add: the axes, made from `world` (collective), and the
// parameters below plan.ignored. ConfigError, before anything has changed and with the same text on every rank, when
// the ranks' plans differ (effective_config.h).
FullyShardOptions options_for(nn::Module& model, const ResolvedFsdp2Config& plan, comm::World& world);
// Wraps the modules at `paths` bottom-up, whatever their order, and the root last.
void shard_modules(nn::Module& model, const std::vector<std::string>& paths, const FullyShardOptions& options);
// Explicit prefetch: each module at `paths` gets the next `forward` of the list, and the next `backward` of the
// reversed list; 0 leaves the implicit order. The modules are wrapped.
void set_prefetch_lists(nn::Module& model, const std::vector<std::string>& paths, int forward, int backward);
// The modules that `patterns` mean, in pre-order of registration, each once. Warnings are appended.
std::vector<std::string> paths_of(nn::Module& model, std::span<const ModulePattern> patterns,
                                  std::vector<std::string>& warnings);

// Shards `model` as planned (recompute is not done here) over a mesh made from `world`. Collective.
void apply_fsdp2(nn::Module& model, const ResolvedFsdp2Config& plan, comm::World& world);

// "2 x 4: shards over 4, replicates over 2".
std::string describe_mode(int replicate, int shard);

// One line per group: path, parameters, bytes gathered, padding waste, reshard, prefetch; the mode in words
// ("2 x 4: shards over 4, replicates over 2") and, last, the parameters that are left to the root. Paths are the real
// ones; what was selected by an alias (Fsdp2Plan::written_as) says "as ALIAS".
std::string describe_groups(nn::Module& model, const std::map<std::string, std::string>& written_as = {});

}  // namespace loom::sharding
