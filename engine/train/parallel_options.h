// ParallelOptions: how a job is sharded: its fsdp2_config.yaml, and the flags beside keys of that file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/train/pipeline/options.h"
#include "models/decoder/layer_recompute_options.h"
#include "sharding/config/recomputed_module.h"
#include "sharding/config/token_dispatcher.h"
#include "sharding/gather_layout.h"

namespace loom::sharding {
struct Fsdp2Config;
}

namespace loom::train {

// Of ranks that share a sequence.
enum class ContextParallelAlgo : std::uint8_t {
  kRing,
  kUlysses,
  kHybrid,
  kKvAllGather,
};

// Slices of tools that have a switch and no number.
inline constexpr int kMc2Slices = 4;

struct ParallelOptions {
  bool use_torch_fsdp2 = false;
  std::optional<sharding::GatherLayout> gather_layout;     // none: kFast with KernelSet::kFast, else kBuffered
  std::optional<std::filesystem::path> fsdp2_config_path;  // without use_torch_fsdp2, none
  // What that file says where it is of another dialect (engine/dialects), or the command line where there is no file;
  // none: the file is fsdp2_config.yaml itself.
  std::shared_ptr<const sharding::Fsdp2Config> fsdp2_config;
  int expert_model_parallel_size = 0;  // replaces expert_parallel_size of that file; 0: not given
  // Ranks that share a sequence, how, and how many of them by Ulysses of a hybrid; replace ulysses_parallel_size,
  // ring_attention_size and ring_rotate_method of that file. 0: not given.
  int context_parallel_size = 0;
  std::optional<ContextParallelAlgo> context_parallel_algo;  // none: kRing
  int ulysses_degree_in_cp = 0;
  int tensor_model_parallel_size = 0;  // replaces tensor_parallel_size of that file; 0: not given
  bool sequence_parallel = false;
  PipelineParallel pipeline = {};
  // Set overlap_slices of that file: to kMc2Slices, or to coc_parallel_num.
  bool use_ascend_mc2 = false;
  bool use_ascend_coc = false;
  int coc_parallel_num = 1;
  // Replace the keys of that file with these names; none and false: not given.
  std::optional<sharding::TokenDispatcher> moe_token_dispatcher_type;
  bool moe_shared_expert_overlap = false;
  std::vector<double> expert_load;  // of plans: models::ExpertLoad
  bool bf16 = false;                // --bf16 of launch scripts: the file has to say param_dtype: bf16
  // Recompute of a decoder's layers, and the names of the flags that ask for it: refused beside recompute_modules of
  // that file (recompute_flags.h).
  models::LayerRecompute recompute_layers;
  bool recompute_activations = false;  // same as kSelective, which replaces it when defaults are filled in
  std::vector<std::string> megatron_recompute_flags;
  // Replaces recompute_keep and recompute_every of that file; kNone and 0: not given.
  sharding::RecomputeKeep recompute_keep = sharding::RecomputeKeep::kNone;
  int recompute_every = 0;
};

// The keys of the job's file, with the places in it. Of a job that has one.
sharding::Fsdp2Config read_sharding(const ParallelOptions& options);
// Of `ranks`, those that read samples of their own: the ranks of one sequence, and of one matrix, read the same. All of
// them where the file cannot be read, which read_sharding() reports, or their numbers do not divide.
int data_ranks(const ParallelOptions& options, int ranks);
// The name of that file in messages.
std::string sharding_file(const ParallelOptions& options);

}  // namespace loom::train
