#include "engine/train/parallel_options.h"

#include "sharding/config/fsdp2_config.h"

namespace loom::train {

sharding::Fsdp2Config read_sharding(const ParallelOptions& options) {
  return options.fsdp2_config ? *options.fsdp2_config : sharding::load_fsdp2_config(*options.fsdp2_config_path);
}

}  // namespace loom::train
