#include "engine/cli/words/distributed_optimizer.h"

#include <fmt/format.h>
#include <memory>

#include "engine/core/error.h"
#include "engine/job/foreign.h"
#include "models/hub/model_hub.h"
#include "models/hub/model_source.h"
#include "models/mixin/fsdp2_mixin.h"
#include "sharding/config/fsdp2_config.h"
#include "sharding/pipeline/pipeline_parts.h"

namespace loom::cli {
namespace {

constexpr std::string_view kFlag = "--use-distributed-optimizer";

bool overlaps(const job::Job& job) {
  return job::foreign_value(job.written, "--overlap-grad-reduce") ||
         job::foreign_value(job.written, "--overlap-param-gather");
}

// Empty: the program does not know the model, or the model has no list of layers.
std::string layers_of(const models::ModelOptions& options) {
  try {
    const auto model = models::ModelHub::global().build(models::configuration_of(options));
    const auto parts = models::sharded_module(*model).attachment<sharding::PipelineParts>();
    return parts == nullptr ? std::string{} : parts->layers;
  } catch (const ConfigError&) {  // which is said where the model is read
    return {};
  }
}

}  // namespace

void settle_distributed_optimizer(job::Job& job, bool users_program) {
  train::ParallelOptions& parallel = job.parallel;
  const bool is_here = job::foreign_value(job.written, kFlag) && !job.optimizer.swap_optimizer;
  if (!is_here || parallel.use_torch_fsdp2 || parallel.fsdp2_config_path || parallel.fsdp2_config) return;
  std::string keys = "sharding_size: auto\nreshard_after_forward: false\n";
  if (!parallel.pipeline.is_on()) keys += "reshard_after_backward: false\nsync_each_batch: false\n";
  if (job.optimizer.fp16) keys += "param_dtype: fp16\n";
  if (parallel.bf16) keys += "param_dtype: bf16\nreduce_dtype: fp32\n";
  const std::string layers = overlaps(job) && !users_program ? layers_of(job.model) : std::string{};
  if (!layers.empty()) keys += fmt::format("sub_modules_to_wrap: [\"{}.{{*}}\"]\n", layers);
  parallel.use_torch_fsdp2 = true;
  parallel.fsdp2_config = std::make_shared<const sharding::Fsdp2Config>(sharding::parse_fsdp2_config(keys, kFlag));
  job.written.told.push_back(fmt::format("{} as fsdp2_config.yaml:\n  {}", kFlag, [&] {
    std::string indented;
    for (const char c : keys.substr(0, keys.size() - 1)) indented += c == '\n' ? "\n  " : std::string(1, c);
    return indented;
  }()));
  for (const std::string_view flag :
       {kFlag, std::string_view("--overlap-grad-reduce"), std::string_view("--overlap-param-gather")}) {
    std::erase_if(job.written.foreign, [&](const auto& given) { return given.first == flag; });
  }
}

}  // namespace loom::cli
