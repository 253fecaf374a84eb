#include "engine/train/parallel_options.h"

#include <fmt/core.h>

#include "sharding/config/fsdp2_config.h"

namespace loom::train {

sharding::Fsdp2Config read_sharding(const ParallelOptions& options) {
  sharding::Fsdp2Config config =
      options.fsdp2_config ? *options.fsdp2_config : sharding::load_fsdp2_config(*options.fsdp2_config_path);
  if (options.expert_model_parallel_size == 0) return config;
  const std::string flag = fmt::format("--expert-model-parallel-size {}", options.expert_model_parallel_size);
  const config::SourceMark mark{flag};
  config.expert_parallel_size = options.expert_model_parallel_size;
  config.places.insert_or_assign("expert_parallel_size", config::Place{mark, mark});
  if (!config.moe_modules.empty() || options.expert_model_parallel_size == 1) return config;
  const auto usual = sharding::parse_fsdp2_config("moe_modules: [\"model.layers.{*}.mlp.experts\"]", flag);
  config.moe_modules = usual.moe_modules;
  config.places.insert_or_assign("moe_modules", config::Place{mark, mark});
  return config;
}

std::string sharding_file(const ParallelOptions& options) {
  return options.fsdp2_config_path ? options.fsdp2_config_path->string() : "command line";
}

}  // namespace loom::train
