// parallelize: applies an fsdp2_config.yaml to a model, in this order, for these reasons.
//
//   1 check      the file against the world and the model (resolve_fsdp2), then the ranks against each other
//                (options_for): errors are reported before anything has changed, on every rank alike.
//   2 recompute  first: the hooks that gather and reduce are then outside the part that runs again in backward, and a
//                module is gathered once for its recompute and its backward.
//   3 offload    after recompute: of a recomputed module, the tensors its checkpoint keeps move to the host. Before
//                shards: gathered parameters are not activations. Modules that run a few rows at a time (nn::chunk_mbs)
//                come after it: each piece is recomputed and swapped alone.
//   4 experts    each rank keeps its own of the experts that ranks share, before their parameters are sharded.
//                Where ranks share sequences, modules that work on part of one get to know with whom.
//   5 shard      bottom-up, so that a parent owns the parameters its wrapped descendants do not; the root last, which
//                owns the rest. Post-order over the module tree: the order of the list does not matter.
//   6 prefetch   last: the lists are of wrapped modules. Candidates are the groups in pre-order of registration of
//                their first modules, or in the order of the file's list, without the root. Forward: the next n;
//                backward: the next n of the reversed list. 0 leaves the implicit order (backward: one group ahead in
//                the order of execution).
//
// Errors     ConfigError before anything is allocated, on every rank alike.
// Source     MindSpeed-MM, mixin route.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/process_group.h"
#include "engine/dist/context_layout.h"
#include "engine/nn/chunk_mbs.h"
#include "engine/nn/module.h"
#include "sharding/config/effective_config.h"
#include "sharding/config/fsdp2_config.h"
#include "sharding/expert/expert_module.h"
#include "sharding/policy.h"
#include "sharding/tensor/share_matrices.h"

namespace loom::sharding {

// A parameter group that sub_modules_to_wrap defines.
struct WrappedGroup {
  std::vector<std::string> paths;  // of modules, in pre-order of registration; not one inside another
  std::optional<ReshardAfterForward> reshard_after_forward = {};  // none: the setting of all groups
  std::size_t entry = 0;  // the last entry of the list that selects it, counted from 0
  // The innermost of hook_modules that holds all of them: its forward gathers and reshards. Empty: their own.
  std::string hook_module = {};
  bool has_shared_experts = false;  // one module of moe_modules, sharded over axes of its own
};

// Experts that ranks share.
struct SharedExperts {
  std::vector<std::string> paths;  // of moe_modules, in pre-order of registration
  int ranks = 1;                   // that share one set of experts
  bool shards = true;              // over the ranks that have the same experts; false: these keep copies
  ExpertSharing sharing;
};

// Sequences that ranks share.
struct SharedSequences {
  dist::ContextDegrees degrees;
  RotateMethod rotate = RotateMethod::kAllToAll;
};

// "model.norm, lm_head", with "(reshard_after_forward: false)" if that is set.
std::string text_of(const WrappedGroup& group);

// The configuration resolved against a model and a world: nothing is allocated or changed yet.
struct ResolvedFsdp2Config {
  WorldLayout layout;
  FullyShardOptions options;         // options_for() adds the axes and the ignored parameters
  std::vector<WrappedGroup> groups;  // of sub_modules_to_wrap, in pre-order of the first module of each
  std::vector<std::string> wrapped;  // the paths of all their modules
  SharedSequences sequences;
  SharedMatrices matrices;
  SharedExperts experts;                  // their modules are groups too
  std::vector<std::string> hook_modules;  // paths, pre-order of registration
  std::vector<std::string> ignored;       // paths of modules whose parameters are left out of sharding
  // The recomputed modules and how, one entry per module: recompute_modules in pre-order of registration, then
  // Fsdp2Config::recompute_by_path.
  std::vector<RecomputedModule> recomputed;
  std::vector<std::string> offloaded;        // paths of activation_offload_modules, in the order of that list
  bool pin_memory = false;                   // for the offloaded activations
  std::vector<SwappedModule> swapped;        // Fsdp2Config::swap_by_path
  std::vector<nn::ChunkMbsOptions> chunked;  // modules that run a few rows at a time
  int num_to_forward_prefetch = 0;
  int num_to_backward_prefetch = 0;
  PrefetchOrder prefetch_order = PrefetchOrder::kRegistration;
  std::map<std::string, std::string> written_as;  // for paths that an alias selected: the name in the file
  std::vector<std::string> warnings;
  std::vector<ConfigEntry> entries;  // every key of the file with its effect: all ranks must agree on them
};

// Step 1, this rank's half.
ResolvedFsdp2Config resolve_fsdp2(nn::Module& model, const Fsdp2Config& config, int world_size, GatherLayout layout);

// Step 1, all ranks: the resolved options with the axes, made from `world` (collective), and the parameters below the
// ignored modules. ConfigError, with the same text on every rank, if the ranks differ (effective_config.h).
FullyShardOptions options_for(nn::Module& model, const ResolvedFsdp2Config& resolved, comm::World& world);

// Makes a module of `model` recompute in backward, as `choice` selects. Passed in, as this room does not depend
// on recompute (FSDP2Mixin passes models::recompute_module, of models/mixin).
using RecomputeStep = std::function<void(nn::Module& model, const RecomputedModule& choice)>;

// Swaps activations of the modules at `paths`, which may be empty: called once, so that the caller may swap more
// (offload::swap_activations; FSDP2Mixin passes models/mixin/activation_swap.h).
using OffloadStep = std::function<void(nn::Module& model, const std::vector<std::string>& paths, bool pin_memory)>;

// Steps 2 to 6. ConfigError if modules are to be recomputed and `recompute` is empty, or to be offloaded and
// `offload` is. Collective.
void parallelize(nn::Module& model, const ResolvedFsdp2Config& resolved, const FullyShardOptions& options,
                 const RecomputeStep& recompute, const OffloadStep& offload = nullptr);
// options_for(), then the same.
void parallelize(nn::Module& model, const ResolvedFsdp2Config& resolved, comm::World& world,
                 const RecomputeStep& recompute = nullptr, const OffloadStep& offload = nullptr);

// --- the steps, for a strategy of its own (models::FSDP2Mixin) ---

void recompute_modules(nn::Module& model, const std::vector<RecomputedModule>& choices, const RecomputeStep& recompute);
void offload_activations(nn::Module& model, const std::vector<std::string>& paths, bool pin_memory,
                         const OffloadStep& offload);
// Wraps the modules at `paths` bottom-up, whatever their order, and the root last.
void shard_modules(nn::Module& model, const std::vector<std::string>& paths, const FullyShardOptions& options);
// Explicit prefetch: each module at `paths` gets the next `forward` of the list, and the next `backward` of the
// reversed list; 0 leaves the implicit order. The modules are wrapped.
void set_prefetch_lists(nn::Module& model, const std::vector<std::string>& paths, int forward, int backward);
// The modules that `patterns` select, in pre-order of registration, each once. Warnings are appended.
std::vector<std::string> paths_of(nn::Module& model, std::span<const ModulePattern> patterns,
                                  std::vector<std::string>& warnings);
// The same in the order of the patterns.
std::vector<std::string> paths_in_order_of(nn::Module& model, std::span<const ModulePattern> patterns,
                                           std::vector<std::string>& warnings);

// --- in words ---

// "2 x 4: shards over 4, replicates over 2".
std::string describe_mode(int replicate, int shard);

// One line per group: path, parameters, bytes gathered, padding waste, reshard, prefetch; the mode in words
// ("2 x 4: shards over 4, replicates over 2") and, last, the parameters that are left to the root. Paths are the real
// ones; a path selected by an alias (ResolvedFsdp2Config::written_as) is followed by "as ALIAS".
std::string describe_groups(nn::Module& model, const std::map<std::string, std::string>& written_as = {});

}  // namespace loom::sharding
