#include "engine/job/rows.h"

namespace loom::job {

void add_recompute_keys(std::vector<Key>& table) {
  add_under(
      "Recompute of a decoder's layers (recompute_modules of the file is the other way)",
      {
          choice<&Job::parallel, &Parallel::recompute_layers, &models::LayerRecompute::granularity>(
              "--recompute-granularity",
              "full: whole layers; selective: the attention core, which fused attention never stores"),
          toggle<&Job::parallel, &Parallel::recompute_activations>("--recompute-activations",
                                                                   "The same as --recompute-granularity selective"),
          choice<&Job::parallel, &Parallel::recompute_layers, &models::LayerRecompute::method>(
              "--recompute-method",
              "With full: uniform: every --recompute-num-layers layers form one checkpoint; block: each of the first --recompute-num-layers layers does"),
          whole<&Job::parallel, &Parallel::recompute_layers, &models::LayerRecompute::num_layers>(
              "--recompute-num-layers", 1, "Number of layers for --recompute-method")
              .from("none"),
          toggle<&Job::parallel, &Parallel::recompute_layers, &models::LayerRecompute::activation_function>(
              "--recompute-activation-function", "Recompute the activation function instead of storing its output"),
          whole<&Job::parallel, &Parallel::recompute_layers, &models::LayerRecompute::activation_function_num_layers>(
              "--recompute-activation-function-num-layers", 1,
              "Number of layers it applies to, after the layers of block (default: all remaining)"),
          toggle<&Job::parallel, &Parallel::recompute_layers, &models::LayerRecompute::norm>(
              "--recompute-norm", "Recompute the two norms of a layer instead of storing their outputs"),
          whole<&Job::parallel, &Parallel::recompute_layers, &models::LayerRecompute::norm_num_layers>(
              "--recompute-norm-num-layers", 1,
              "Number of layers it applies to, after the layers of block (default: all remaining)"),
          toggle<&Job::parallel, &Parallel::recompute_layers, &models::LayerRecompute::moe_layer>(
              "--moe-layer-recompute", "Recompute the expert part of each MoE layer"),
          choice<&Job::parallel, &Parallel::recompute_keep>(
              "--recompute-keep",
              "In recomputed modules, keep the results of fused attention, and with selected_ops also of every second matrix product; recompute_keep in the file"),
          whole<&Job::parallel, &Parallel::recompute_every>(
              "--recompute-every", 1,
              "Recompute every N-th module that recompute_modules selects; recompute_every in the file")
              .from("none"),
      },
      table);
}

}  // namespace loom::job
