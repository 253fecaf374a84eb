#include "engine/cli/words/recompute_checks.h"

#include "engine/job/rules.h"

namespace loom::cli {

void settle_recompute(const Command& app, train::ParallelOptions& parallel) {
  models::LayerRecompute& layers = parallel.recompute_layers;
  for (const std::string_view flag : job::kMegatronRecomputeFlags) {
    if (given(app, std::string(flag))) parallel.megatron_recompute_flags.emplace_back(flag);
  }
  if (parallel.recompute_activations) layers.granularity = models::RecomputeGranularity::kSelective;
}

}  // namespace loom::cli
