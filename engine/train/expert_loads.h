// ExpertLoads: the tokens that the experts of a step got, over all ranks: figures of its metrics, and the correction of
// its routers' choices (--moe-router-enable-expert-bias).
//
// Figures   metrics.expert_tokens; reports "expert_load_max_over_mean": of the layer where it is largest, the tokens of
//           the busiest expert by the mean; with a capacity "dropped_choices", over all layers.
// Plans     count no tokens: nothing is added; the correction is issued.
// Threads   the rank's host thread; end_step() is collective.
#pragma once

#include <vector>

#include "engine/comm/process_group.h"
#include "engine/nn/module.h"
#include "engine/train/step/step_metrics.h"
#include "models/decoder/expert_slot.h"

namespace loom::train {

class ExpertLoads {
 public:
  explicit ExpertLoads(nn::Module& model) : blocks_(models::expert_blocks(model)) {}

  // Takes the counts of the step; `ranks` are all that have these layers, and `stages` those with the other layers of a
  // model with experts; null: there are none.
  void end_step(comm::ProcessGroup& ranks, comm::ProcessGroup* stages, StepMetrics& metrics);

 private:
  struct Figures {
    std::vector<double> tokens;  // of each expert
    double worst = 0;            // of the layers, largest over mean
    double dropped = 0;
    double has_capacity = 0;  // 1: a choice may be dropped
  };

  std::vector<double> take_counts();
  Figures figures_of(const std::vector<double>& counts) const;
  static void join_stages(comm::ProcessGroup& stages, Figures& figures);

  const std::vector<models::ExpertBlock> blocks_;
};

}  // namespace loom::train
