#include "engine/cli/words/recompute_checks.h"

namespace loom::cli {
namespace {

using models::LayerRecompute;
using models::RecomputeGranularity;

// Refused beside recompute_modules; a script's --enable-recompute-layers-per-pp-rank changes nothing without stages.
constexpr const char* kMegatronFlags[] = {"--recompute-granularity",
                                          "--recompute-method",
                                          "--recompute-num-layers",
                                          "--recompute-activations",
                                          "--recompute-activation-function",
                                          "--recompute-activation-function-num-layers",
                                          "--recompute-norm",
                                          "--recompute-norm-num-layers",
                                          "--moe-layer-recompute"};

}  // namespace

void settle_recompute(const Command& app, train::ParallelOptions& parallel) {
  LayerRecompute& layers = parallel.recompute_layers;
  for (const char* flag : kMegatronFlags) {
    if (given(app, flag)) parallel.megatron_recompute_flags.emplace_back(flag);
  }
  if (parallel.recompute_activations) layers.granularity = RecomputeGranularity::kSelective;
}

}  // namespace loom::cli
