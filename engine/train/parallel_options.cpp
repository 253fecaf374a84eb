#include "engine/train/parallel_options.h"

#include "sharding/config/fsdp2_config.h"

namespace loom::train {

sharding::Fsdp2Config read_sharding(const ParallelOptions& options) {
  return options.fsdp2_config ? *options.fsdp2_config : sharding::load_fsdp2_config(*options.fsdp2_config_path);
}

std::string sharding_file(const ParallelOptions& options) {
  return options.fsdp2_config_path ? options.fsdp2_config_path->string() : "command line";
}

}  // namespace loom::train
