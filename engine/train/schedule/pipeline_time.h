// What an order costs, in virtual time and in what a rank keeps; and the same of its lists with messages.
//
// Time     F = C = I = W = R = 1, B = 2, a forward and a backward together 3 (they start when both may, and end
//          together). Of an order, messages are free; of lists, a message arrives when both sides have posted it, and a
//          waited batch holds its rank until all of it has arrived.
// Kept     counted in stage-micro-batches of a rank. Activations: F or R ran (C keeps none), and B or W did not. Until
//          the gradient of the input: B or I did not. Gradients of weights that wait: I ran, W did not.
// Errors   ConfigError for an order or lists that pipeline_check.h refuses.
// Threads  any.
// Source   the definitions of tests/reference/README.md, "pipelines/orders".
#pragma once

#include <cstdint>
#include <vector>

#include "engine/train/schedule/pipeline_schedule.h"

namespace loom::train {

struct PipelineFigures {
  std::int64_t makespan = 0;
  std::vector<std::int64_t> busy;  // by rank, as are the peaks
  double bubble = 0;               // 1 - sum of busy / (ranks x makespan)
  std::vector<std::int64_t> peak_activations;
  std::vector<std::int64_t> peak_until_input_gradient;
  std::vector<std::int64_t> peak_weight_gradients_waiting;
};

struct PipelineListFigures {
  std::vector<std::int64_t> unshards;  // by rank
  std::vector<std::int64_t> peak_unsharded_stages;
  bool first_in_first_out = false;  // from each rank to each, messages are received in the order in which they are sent
  std::int64_t makespan_waiting = 0;
  bool runs_on_one_stream = false;  // also where each rank's batches pass one after another
};

PipelineFigures pipeline_figures(const PipelineSchedule& schedule);
PipelineListFigures pipeline_list_figures(const PipelineSchedule& schedule, const PipelineLists& lists);

}  // namespace loom::train
