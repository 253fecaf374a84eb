#include "engine/cli/words/recompute_checks.h"

namespace loom::cli {
namespace {

using models::LayerRecompute;
using models::RecomputeGranularity;
using models::RecomputeMethod;

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

void refuse_beside_selective(const train::ParallelOptions& parallel) {
  const LayerRecompute& layers = parallel.recompute_layers;
  if (layers.method == RecomputeMethod::kNone && layers.num_layers == 0) return;
  config_error("{} is of --recompute-granularity full, and {} asks for selective; remove one of them",
               layers.method == RecomputeMethod::kNone ? "--recompute-num-layers" : "--recompute-method",
               parallel.recompute_activations ? "--recompute-activations" : "--recompute-granularity");
}

void check_full(const LayerRecompute& a) {
  const bool full = a.granularity == RecomputeGranularity::kFull;
  const std::pair<bool, const char*> parts[] = {{a.method != RecomputeMethod::kNone, "--recompute-method"},
                                                {a.num_layers > 0, "--recompute-num-layers"}};
  for (const auto& [is_given, flag] : parts) {
    if (is_given && !full) {
      config_error("{} is given without --recompute-granularity full, so nothing is recomputed by it; add that", flag);
    }
    if (!is_given && full) {
      config_error(
          "--recompute-granularity full is given without {}; write --recompute-method uniform (checkpoints of N "
          "layers) "
          "or block (the first N layers), and --recompute-num-layers N",
          flag);
    }
  }
}

void check_counts(const LayerRecompute& a) {
  const std::pair<bool, const char*> counts[] = {
      {a.activation_function_num_layers && !a.activation_function, "--recompute-activation-function"},
      {a.norm_num_layers && !a.norm, "--recompute-norm"}};
  for (const auto& [is_alone, flag] : counts) {
    if (is_alone) config_error("{}-num-layers is given without {}; add that, or remove it", flag, flag);
  }
}

// uniform leaves no layer for the others.
void check_uniform(const LayerRecompute& a) {
  if (a.method != RecomputeMethod::kUniform) return;
  const std::pair<bool, const char*> others[] = {{a.activation_function, "--recompute-activation-function"},
                                                 {a.norm, "--recompute-norm"},
                                                 {a.moe_layer, "--moe-layer-recompute"}};
  for (const auto& [is_given, flag] : others) {
    if (!is_given) continue;
    config_error(
        "--recompute-method is uniform, which recomputes every layer, and {} is for layers that are not; write "
        "--recompute-method block, or remove one of them",
        flag);
  }
}

}  // namespace

void settle_recompute(const Command& app, train::ParallelOptions& parallel) {
  LayerRecompute& layers = parallel.recompute_layers;
  for (const char* flag : kMegatronFlags) {
    if (given(app, flag)) parallel.megatron_recompute_flags.emplace_back(flag);
  }
  if (parallel.recompute_activations) layers.granularity = RecomputeGranularity::kSelective;
  if (layers.granularity == RecomputeGranularity::kSelective) refuse_beside_selective(parallel);
  check_full(layers);
  check_counts(layers);
  check_uniform(layers);
}

}  // namespace loom::cli
