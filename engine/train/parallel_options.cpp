#include "engine/train/parallel_options.h"

#include <fmt/core.h>

#include "engine/core/error.h"
#include "sharding/config/fsdp2_config.h"

namespace loom::train {
namespace {

// The flag is the place of the key from now on.
void place(sharding::Fsdp2Config& config, std::string_view key, const std::string& flag) {
  const config::SourceMark mark{flag};
  config.places.insert_or_assign(std::string(key), config::Place{mark, mark});
}

void share_matrices(const ParallelOptions& options, sharding::Fsdp2Config& config) {
  if (const int ranks = options.tensor_model_parallel_size; ranks > 0) {
    config.tensor_parallel_size = ranks;
    place(config, "tensor_parallel_size", fmt::format("--tensor-model-parallel-size {}", ranks));
  }
  // Megatron's scripts write these beside one rank too.
  if (config.tensor_parallel_size == 1) return;
  if (options.sequence_parallel) {
    config.sequence_parallel = true;
    place(config, "sequence_parallel", "--sequence-parallel");
  }
  if (!options.use_ascend_mc2 && !options.use_ascend_coc) return;
  config.overlap_slices = options.use_ascend_mc2 ? kMc2Slices : options.coc_parallel_num;
  place(config, "overlap_slices",
        options.use_ascend_mc2 ? "--use-ascend-mc2" : fmt::format("--coc-parallel-num {}", options.coc_parallel_num));
}

void dispatch_tokens(const ParallelOptions& options, sharding::Fsdp2Config& config) {
  if (options.moe_token_dispatcher_type) {
    config.moe_token_dispatcher_type = *options.moe_token_dispatcher_type;
    place(config, "moe_token_dispatcher_type", "--moe-token-dispatcher-type");
  }
  if (!options.moe_shared_expert_overlap) return;
  config.moe_shared_expert_overlap = true;
  place(config, "moe_shared_expert_overlap", "--moe-shared-expert-overlap");
}

void share_experts(const ParallelOptions& options, sharding::Fsdp2Config& config) {
  if (options.expert_model_parallel_size == 0) return;
  const std::string flag = fmt::format("--expert-model-parallel-size {}", options.expert_model_parallel_size);
  config.expert_parallel_size = options.expert_model_parallel_size;
  place(config, "expert_parallel_size", flag);
  if (!config.moe_modules.empty() || options.expert_model_parallel_size == 1) return;
  const auto usual = sharding::parse_fsdp2_config("moe_modules: [\"model.layers.{*}.mlp.experts\"]", flag);
  config.moe_modules = usual.moe_modules;
  place(config, "moe_modules", flag);
}

// Ranks of Ulysses among those that share a sequence.
int ulysses_ranks(const ParallelOptions& options) {
  const int ranks = options.context_parallel_size, asked = options.ulysses_degree_in_cp;
  if (options.context_parallel_algo == ContextParallelAlgo::kUlysses) return ranks;
  if (options.context_parallel_algo != ContextParallelAlgo::kHybrid) return 1;
  if (asked > 1 && asked < ranks && ranks % asked == 0) return asked;
  config_error(
      "--context-parallel-algo hybrid_cp_algo: --ulysses-degree-in-cp is {}, of --context-parallel-size {}; use a "
      "divisor above 1 and below that",
      asked, ranks);
}

void share_sequences(const ParallelOptions& options, sharding::Fsdp2Config& config) {
  if (options.context_parallel_size == 0) return;
  config.ulysses_parallel_size = ulysses_ranks(options);
  config.ring_attention_size = options.context_parallel_size / config.ulysses_parallel_size;
  if (options.context_parallel_algo == ContextParallelAlgo::kKvAllGather) {
    config.ring_rotate_method = sharding::RotateMethod::kKvAllGather;
  }
  for (const char* key : {"ulysses_parallel_size", "ring_attention_size", "ring_rotate_method"}) {
    place(config, key, fmt::format("--context-parallel-size {}", options.context_parallel_size));
  }
}

}  // namespace

sharding::Fsdp2Config read_sharding(const ParallelOptions& options) {
  sharding::Fsdp2Config config =
      options.fsdp2_config ? *options.fsdp2_config : sharding::load_fsdp2_config(*options.fsdp2_config_path);
  share_experts(options, config);
  dispatch_tokens(options, config);
  share_sequences(options, config);
  share_matrices(options, config);
  return config;
}

int data_ranks(const ParallelOptions& options, int ranks) {
  const int stages = options.pipeline.pipeline_model_parallel_size;
  if (ranks % stages == 0) ranks /= stages;
  std::error_code none;
  const bool has_file = options.fsdp2_config || (options.fsdp2_config_path &&
                                                 std::filesystem::is_regular_file(*options.fsdp2_config_path, none));
  if (!options.use_torch_fsdp2 || !has_file) return ranks;
  try {
    const sharding::Fsdp2Config config = read_sharding(options);
    const int shared = config.context_ranks() * config.tensor_parallel_size;
    return ranks % shared == 0 ? ranks / shared : ranks;
  } catch (const ConfigError&) {
    return ranks;
  }
}

std::string sharding_file(const ParallelOptions& options) {
  return options.fsdp2_config_path ? options.fsdp2_config_path->string() : "command line";
}

}  // namespace loom::train
