// The lists that ranks run, made of an order: gathers, reductions and messages put in.
//
//   0UNSHARD 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 0REDUCE_GRAD 0RESHARD
//
// UNSHARD      before an action, for the next stages that the rank computes, at most three; before it a RESHARD for
//              each gathered stage that is not among these
// REDUCE_GRAD  directly behind the last B or W of a stage
// SEND         directly behind the F, C, B or I that makes it; its RECV enters the list of the other rank at that
//              moment, the ranks taking turns with one action each. Neighbouring stages on one rank exchange nothing.
//
// Errors   ConfigError for an order that check_order() refuses.
// Threads  any.
// Source   torch 2.11, _PipelineScheduleRuntime; equal to its lists in tests/reference/pipelines/orders.
#pragma once

#include "engine/train/schedule/pipeline_schedule.h"

namespace loom::train {

PipelineLists lower_pipeline(const PipelineSchedule& schedule);

}  // namespace loom::train
