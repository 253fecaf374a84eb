// StepFigures: figures of a finished step for the logs, beside its metrics. Empty functions: not logged.
#pragma once

#include <functional>
#include <vector>

#include "engine/train/step/step_metrics.h"

namespace loom::log {

struct StepFigures {
  std::function<double()> params_norm = {};    // of the parameters after the step
  std::function<double()> zeros_in_grad = {};  // elements of the gradients that were 0
  std::function<std::vector<train::LayerNorms>()> norms_by_layer = {};
};

}  // namespace loom::log
