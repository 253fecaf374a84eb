#include "engine/train/make_optimizer.h"

#include "engine/nn/optim/adamw.h"
#include "engine/nn/optim/muon.h"
#include "engine/nn/optim/sgd.h"
#include "engine/nn/optim/swapped_adamw.h"
#include "sharding/sharded_parameters.h"

namespace loom::train {

nn::GroupOptions grouping_of(const OptimizerOptions& options) {
  return {.no_decay_on_norms_and_biases = options.no_weight_decay_on_norms_and_biases,
          .hidden_matrices_apart = options.kind == OptimizerKind::kMuon};
}

std::unique_ptr<nn::Optimizer> make_optimizer(const OptimizerOptions& options, nn::Module& module,
                                              nn::ParameterGroups groups, const OptimizerStart& start) {
  const nn::AdamWOptions adamw{.lr = start.lr,
                               .beta1 = options.adam_beta1,
                               .beta2 = options.adam_beta2,
                               .eps = options.adam_eps,
                               .weight_decay = start.weight_decay,
                               .foreach = start.kernels == KernelSet::kPytorch};
  switch (options.kind) {
    case OptimizerKind::kAdam:
      if (!options.swap_optimizer) break;
      return std::make_unique<nn::SwappedAdamW>(std::move(groups), adamw,
                                                nn::SlicesByCount{options.swap_optimizer_times});
    case OptimizerKind::kAdamSwap:
      return std::make_unique<nn::SwappedAdamW>(std::move(groups), adamw,
                                                nn::BatchesByMemory{options.mem_fraction_static});
    case OptimizerKind::kSgd:
      return std::make_unique<nn::Sgd>(std::move(groups), nn::SgdOptions{.lr = start.lr,
                                                                         .momentum = options.sgd_momentum,
                                                                         .dampening = options.sgd_dampening,
                                                                         .weight_decay = start.weight_decay,
                                                                         .nesterov = options.sgd_nesterov});
    case OptimizerKind::kMuon:
      return std::make_unique<nn::Muon>(std::move(groups), sharding::sharded_parameters(module), options.muon, adamw);
  }
  return std::make_unique<nn::AdamW>(std::move(groups), adamw);
}

}  // namespace loom::train
