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

bool has_distributed_optimizer(const job::Job& job) { return job::foreign_value(job.written, kFlag).has_value(); }

std::vector<std::string> refused_distributed_optimizer(const job::Job& job) {
  if (!has_distributed_optimizer(job) || job.optimizer.swap_optimizer) return {};
  return {
      "--use-distributed-optimizer does not go with a file of --use-torch-fsdp2, which says itself how the optimizer's "
      "state is shared out; remove it, and write reshard_after_forward: false, reshard_after_backward: false and "
      "sync_each_batch: false into the file for what it does"};
}

void settle_distributed_optimizer(job::Job& job, bool users_program) {
  train::ParallelOptions& parallel = job.parallel;
  const bool is_here = has_distributed_optimizer(job) && !job.optimizer.swap_optimizer;
  if (!is_here || parallel.use_torch_fsdp2 || parallel.fsdp2_config_path || parallel.fsdp2_config) return;
  std::vector<std::string> keys{"sharding_size: auto", "reshard_after_forward: false"};
  if (!parallel.pipeline.is_on()) keys.insert(keys.end(), {"reshard_after_backward: false", "sync_each_batch: false"});
  if (job.optimizer.fp16) keys.emplace_back("param_dtype: fp16");
  if (parallel.bf16) keys.insert(keys.end(), {"param_dtype: bf16", "reduce_dtype: fp32"});
  const std::string layers = overlaps(job) && !users_program ? layers_of(job.model) : std::string{};
  if (!layers.empty()) keys.push_back(fmt::format("sub_modules_to_wrap: [\"{}.{{*}}\"]", layers));
  parallel.use_torch_fsdp2 = true;
  parallel.fsdp2_config = std::make_shared<const sharding::Fsdp2Config>(
      sharding::parse_fsdp2_config(fmt::format("{}\n", fmt::join(keys, "\n")), kFlag));
  job.written.told.push_back(fmt::format("{} as fsdp2_config.yaml:\n  {}", kFlag, fmt::join(keys, "\n  ")));
  for (const std::string_view flag :
       {kFlag, std::string_view("--overlap-grad-reduce"), std::string_view("--overlap-param-gather")}) {
    std::erase_if(job.written.foreign, [&](const auto& given) { return given.first == flag; });
  }
}

}  // namespace loom::cli
