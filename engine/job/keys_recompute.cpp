#include "engine/job/rows.h"

namespace loom::job {

void add_recompute_keys(std::vector<Key>& table) {
  add_under(
      "Recompute of a decoder's layers (recompute_modules of the file is the other way)",
      {
          choice<&Job::parallel, &Parallel::recompute_layers, &models::LayerRecompute::granularity>(
              "--recompute-granularity", "Whole layers, or the core of attention, which fused attention does not keep"),
          toggle<&Job::parallel, &Parallel::recompute_activations>("--recompute-activations",
                                                                   "The same as --recompute-granularity selective"),
          choice<&Job::parallel, &Parallel::recompute_layers, &models::LayerRecompute::method>(
              "--recompute-method",
              "Of full: every --recompute-num-layers layers are one checkpoint, or each of the first so many layers is"),
          whole<&Job::parallel, &Parallel::recompute_layers, &models::LayerRecompute::num_layers>(
              "--recompute-num-layers", 1, "That number of layers")
              .from("none"),
          toggle<&Job::parallel, &Parallel::recompute_layers, &models::LayerRecompute::activation_function>(
              "--recompute-activation-function",
              "Drop the output of the activation function after its use, and compute it again"),
          whole<&Job::parallel, &Parallel::recompute_layers, &models::LayerRecompute::activation_function_num_layers>(
              "--recompute-activation-function-num-layers", 1,
              "Of so many layers, behind those of block (all that are left)"),
          toggle<&Job::parallel, &Parallel::recompute_layers, &models::LayerRecompute::norm>(
              "--recompute-norm", "The same for the outputs of a layer's two norms"),
          whole<&Job::parallel, &Parallel::recompute_layers, &models::LayerRecompute::norm_num_layers>(
              "--recompute-norm-num-layers", 1, "Of so many layers, as above"),
          toggle<&Job::parallel, &Parallel::recompute_layers, &models::LayerRecompute::moe_layer>(
              "--moe-layer-recompute", "Recompute the experts' part of each layer that has experts"),
          choice<&Job::parallel, &Parallel::recompute_keep>(
              "--recompute-keep",
              "Of what is recomputed whole: keep the results of attention and of every second product; recompute_keep of the file"),
          whole<&Job::parallel, &Parallel::recompute_every>(
              "--recompute-every", 1,
              "Recompute each N-th of the modules that recompute_modules selects; recompute_every of the file")
              .from("none"),
      },
      table);
}

}  // namespace loom::job
