// Fsdp2Config: the keys of fsdp2_config.yaml, typed and checked once. Their table is in fsdp2_keys.h.
//
// Order    load_fsdp2_config -> validate_against_world, both before anything is allocated; every
//          rank reads the same file and therefore fails with the same text.
// YAML     plain YAML with line marks. Tabs and spaces after values are ignored. Booleans are as in Python's YAML
//          (true True TRUE yes on, false False FALSE no off, unquoted); numbers are plain decimal digits. null means
//          "not given" if a key has no default of its own (the dtypes, ignored_modules, recompute_modules,
//          moe_modules, activation_offload_modules) and for sharding_size (1), and is an error elsewhere.
// Errors   ConfigError "file:line:column: key is VALUE, ...; the remedy". Unknown and repeated keys are errors.
// Source   MindSpeed-MM, mixin route. Where the migration guide and the code differ in a default, the guide wins.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/dtype.h"
#include "sharding/config/lora_block.h"
#include "sharding/config/module_pattern.h"
#include "sharding/config/recomputed_module.h"
#include "sharding/config/token_dispatcher.h"
#include "sharding/config/wrap_entry.h"
#include "sharding/reshard_after_forward.h"

namespace loom::sharding {

// One of the modules that run in sequence, and whether everything it saves for backward moves to the host.
struct SwappedModule {
  std::string path;
  bool leaves = false;

  bool operator==(const SwappedModule&) const = default;
};

// The order of the groups in the explicit prefetch lists.
// alltoall and allgather are PyTorch's words (a step of the ring at a time; all at once, and again in backward),
// kvallgather MindSpeed's (all at once, and kept).
enum class RotateMethod : std::uint8_t { kAllToAll, kAllGather, kKvAllGather };

enum class PrefetchOrder : std::uint8_t {
  kRegistration,  // the order of the first modules of the groups, in the model
  kList,          // the order of the last entries of sub_modules_to_wrap that select them
};

struct Fsdp2Config {
  // sharding_size: auto.
  static constexpr int kAllRanks = 0;

  // N, the ranks over which each parameter is split; consecutive ranks share a shard group, W / N groups are replicas.
  // Default 1 (nothing is sharded). kAllRanks = auto: N = W. Must divide W.
  int sharding_size = 1;

  // Dtype of the gathered parameters and of the computation; the stored shards keep the model's dtype. fp32, bf16, fp16
  // or fp64. Default none: the model's dtype.
  std::optional<DType> param_dtype;
  // Dtype in which gradients are reduced. Default none: the gradient's dtype, which is the computation's.
  std::optional<DType> reduce_dtype;
  // Dtype to which a wrapped module's outputs are cast. Default none: no cast.
  std::optional<DType> output_dtype;
  // Floating inputs of every wrapped module are cast to param_dtype. Default true.
  bool cast_forward_inputs = true;

  // The parameter groups; the root is always one too. Their order matters for prefetch_order only. Default none.
  std::vector<WrapEntry> sub_modules_to_wrap;
  // Modules around groups: the groups inside one gather together when its forward begins, and reshard when it ends.
  // Default none. A key of our own, as in MindSpeed-MM's native files.
  std::vector<ModulePattern> hook_modules;
  // All groups are gathered, and waited for, before each step. Default false. A key of our own, as in those files.
  bool pregather = false;
  // Modules whose parameters are left out of sharding. Default none.
  std::vector<ModulePattern> ignored_modules;
  // Modules whose activations are recomputed in backward. Default none.
  std::vector<ModulePattern> recompute_modules;
  // The reentrant kind of recompute; no effect without recompute_modules. Default true.
  bool use_reentrant = true;
  // Results of operators that a recomputed module keeps: any but kNone is not reentrant, and has no effect without
  // recompute_modules. Default none. A key of our own.
  RecomputeKeep recompute_keep = RecomputeKeep::kNone;
  // k: among the modules that recompute_modules selects, in pre-order of registration, the k-th, the 2k-th, ... are
  // recomputed, and the others keep all (torchtitan's selective_ac_option). Default 1: all. A key of our own.
  int recompute_every = 1;
  // Recomputes, instead of the modules that recompute_modules selects, each of their children separately
  // (accelerate's fsdp_activation_checkpointing). Default false. A key of our own.
  bool recompute_children = false;
  // No key: entries that a program adds, module by module, to recompute_modules (the recompute flags of the
  // command line do). The paths are real ones.
  std::vector<RecomputedModule> recompute_by_path;

  // After forward: true frees the gathered parameters (default), false keeps them for backward, an integer k >= 1
  // leaves them split over k consecutive ranks (1 = false, N = true; else k must divide N). For every group without its
  // own setting (WrapEntry).
  ReshardAfterForward reshard_after_forward = true;
  // The same for the root's group. Default none: as reshard_after_forward. A key of our own.
  std::optional<ReshardAfterForward> root_reshard_after_forward;
  // False keeps the gathered parameters after backward for the next micro-batch of a step; after the last one they are
  // freed. With reshard_after_forward: false they are gathered once a step. Default true. A key of our own, with the
  // name of PyTorch's switch.
  bool reshard_after_backward = true;
  // False reduces gradients in the last micro-batch of a step alone; until then each rank adds up whole, unsharded
  // gradients. Default true. A key of our own, with accelerate's name.
  bool sync_each_batch = true;

  // Shards, gradients and optimizer state stay in host memory. Needs no CPU backend of the collectives (the guide's
  // --distributed-backend npu:hccl,cpu:gloo): every group here reduces host memory too. Default false.
  bool offload_to_cpu = false;
  // Page-locked host memory for offload and for activation_offload_modules; no effect without either. Default
  // false.
  bool pin_memory = false;

  // Modules, numbered in the order of the list, whose first argument moves to the host if it is saved for backward,
  // except the last module's. Default none. A key of our own.
  std::vector<ModulePattern> activation_offload_modules;
  // No key: entries of a program (adaptive recompute), in the order of forward; the last one's tensors stay. The
  // paths are real ones. Pinned.
  std::vector<SwappedModule> swap_by_path;

  // How many groups ahead are gathered in forward, by an explicit list. Default 0: only the implicit overlap.
  int num_to_forward_prefetch = 0;
  // The same in backward. Default 0: one group ahead in the order of execution, the guide's "1 by default"; n >= 1 in
  // the file: explicit lists, in reverse order of registration.
  int num_to_backward_prefetch = 0;
  // Default registration, as in MindSpeed-MM's mixin route; its native files use the order of the list. A key of our
  // own.
  PrefetchOrder prefetch_order = PrefetchOrder::kRegistration;

  // Modules whose forward runs over chunk_mbs rows of the batch at a time, inside one gather (nn/chunk_mbs.h). Default
  // none. These four are keys of our own, with the names of MindSpeed-MM's chunkmbs_plan.
  std::vector<ModulePattern> chunk_mbs_modules;
  // Rows of a piece. Default 1.
  int chunk_mbs = 1;
  // Places of the positional arguments that are split. Default [0].
  std::vector<std::int64_t> chunk_arg_indexs = {0};
  // Names of the arguments that are split. Default none.
  std::vector<std::string> chunk_kwarg_names;

  // Linear weights of a block form its group, its norms and gates one separate group that stays gathered. Default
  // false.
  bool align_fsdp_param_groups = false;

  // Ranks that share one set of experts; must divide W. Default 1.
  int expert_parallel_size = 1;
  // Experts are sharded over the ranks that hold the same experts. Default true.
  bool reshard_local_experts = true;
  // Expert modules. Default none.
  std::vector<ModulePattern> moe_modules;
  // How tokens reach the experts of other ranks. Default alltoall.
  TokenDispatcher moe_token_dispatcher_type = TokenDispatcher::kAllToAll;
  // The expert of every token runs beside the exchange of alltoall. Default false.
  bool moe_shared_expert_overlap = false;

  // Ranks that share sequences: neighbours exchange heads for positions (Ulysses), groups of them pass keys and values
  // in a ring. Their product must divide W, and sharding_size or the other way round. Default 1.
  int ulysses_parallel_size = 1;
  int ring_attention_size = 1;
  // How keys and values reach the ranks of a ring. Default alltoall.
  RotateMethod ring_rotate_method = RotateMethod::kAllToAll;
  int context_ranks() const { return ulysses_parallel_size * ring_attention_size; }

  // Ranks that share matrices: neighbours. Must divide W; sharding_size is of the W / t ranks with the same parts.
  // Default 1.
  int tensor_parallel_size = 1;
  // Hidden states between attention and MLP blocks are cut along the sequence. Default false.
  bool sequence_parallel = false;
  // Collectives of linear layers run in as many slices beside their products. Needs sequence_parallel. Default 1:
  // before and after them.
  int overlap_slices = 1;
  // Colwise layers keep a rank's part of their input for backward, which gathers it again. Needs sequence_parallel.
  // Default false: the whole input.
  bool regather_colwise_input = false;
  // The cross-entropy is computed on parts of the logits, which are not gathered for it. Default true.
  bool loss_parallel = true;
  // Linear layers cut by outputs and by inputs. Default none: the model's own plan.
  std::vector<ModulePattern> colwise_parallel;
  std::vector<ModulePattern> rowwise_parallel;

  // Modules whose parameters are not trained. Default none. A key of our own.
  std::vector<ModulePattern> freeze;
  // Adapters (models/lora). Default none: not enabled. A key of our own, with the content of MindSpeed-MM's block.
  LoraBlock lora;

  // The keys in the file.
  std::map<std::string, config::Place, std::less<>> places;
  std::string file_name;

  // The place of a key's value, or of the file if the key is not given: the beginning of a message.
  SourceMark value_mark(std::string_view key) const;
  SourceMark key_mark(std::string_view key) const;
};

// Reads `path`; messages contain the path as given.
Fsdp2Config load_fsdp2_config(const std::filesystem::path& path);
// Reads `text`; `file_name` is its name in messages. One ConfigError names all keys that are refused.
Fsdp2Config parse_fsdp2_config(std::string_view text, std::string_view file_name);

// The effect of a configuration on W ranks.
struct WorldLayout {
  int replicate = 1;  // M: replicas, the outer axis
  int shard = 1;      // N: ranks of a shard group, the inner axis; M * N * t = W
  int tensor = 1;     // t: ranks that share matrices, the innermost axis
  // Resolved on the N ranks: a number of ranks is strictly between 1 and N.
  ReshardAfterForward reshard_after_forward = true;
  ReshardAfterForward root_reshard_after_forward = true;
  std::vector<std::string> warnings;  // one line each, for rank 0 to print
};

// Throws ConfigError if a size does not fit `world_size` (>= 1).
WorldLayout validate_against_world(const Fsdp2Config& config, int world_size);

}  // namespace loom::sharding
