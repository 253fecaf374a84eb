// The optimizer of a run, by --optimizer.
#pragma once

#include <memory>

#include "engine/nn/optim/optimizer.h"
#include "engine/train/arguments.h"

namespace loom::train {

// Of the parameters of `module` that are trained, after sharding. Groups: make_parameter_groups(). A group whose
// weight_decay was none has `weight_decay`.
std::unique_ptr<nn::Optimizer> make_optimizer(const TrainerOptions& options, nn::Module& module,
                                              nn::ParameterGroups groups, double weight_decay);

// How the parameters are grouped for it.
nn::GroupOptions grouping_of(const TrainerOptions& options);

}  // namespace loom::train
