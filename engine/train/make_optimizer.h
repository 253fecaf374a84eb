// The optimizer of a run, as --optimizer selects it.
#pragma once

#include <memory>

#include "engine/nn/optim/optimizer.h"
#include "engine/train/kernel_choice.h"
#include "engine/train/optimizer_options.h"

namespace loom::train {

// The schedule's first values, and the kernels of the job.
struct OptimizerStart {
  double lr = 0;
  double weight_decay = 0;
  KernelSet kernels = KernelSet::kFast;
};

// Optimizes the trained parameters of `module`, after sharding. Groups: make_parameter_groups(). A group whose
// weight_decay is none gets the value in `start`.
std::unique_ptr<nn::Optimizer> make_optimizer(const OptimizerOptions& options, nn::Module& module,
                                              nn::ParameterGroups groups, const OptimizerStart& start);

// How the parameters are grouped for the optimizer.
nn::GroupOptions grouping_of(const OptimizerOptions& options);

}  // namespace loom::train
