#include "engine/train/memory_rules.h"

#include "engine/core/error.h"

namespace loom::train {

void check_device_memory(const MemoryOptions& memory, const TrainingInputs& inputs) {
  if (!memory.reuse_fp32_param) return;
  if (!inputs.fsdp2_config) {
    config_error(
        "--reuse-fp32-param is for weights that are gathered in bf16, and without a file they are used as they are; "
        "give --use-torch-fsdp2 --fsdp2-config-path FILE with param_dtype: bf16, or remove the flag");
  }
  const sharding::Fsdp2Config& config = *inputs.fsdp2_config;
  if (config.param_dtype == DType::kBF16) return;
  config_error("{}: param_dtype is {}, and --reuse-fp32-param keeps bf16 copies; use bf16, or remove the flag",
               config.value_mark("param_dtype").text(),
               config.param_dtype ? name(*config.param_dtype) : std::string_view("null"));
}

}  // namespace loom::train
