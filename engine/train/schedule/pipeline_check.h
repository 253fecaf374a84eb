// Whether a pipeline's order can run: every action once and in a legal order, and no rank waits for another forever.
//
// Complete  every stage is on one rank; F or C of each of its micro-batches once, then R of a C once, then B once or I
//           and W once each, W behind I.
// Messages  of lists with them: each output and gradient that another rank needs is sent once, behind its action, and
//           received once, before the action that needs it; neighbouring stages on one rank exchange nothing. Gathered
//           lists (those with an UNSHARD) compute a stage only while it is gathered.
// Runs      the ranks get to the end of their lists. A rank waits for what an action needs and for all messages of a
//           waited batch; a message arrives when both sides have posted it.
// Errors    ConfigError for the first rule that is broken; of ranks that wait for each other it names the actions, each
//           behind the one that waits for it.
// Threads   any.
#pragma once

#include "engine/train/schedule/pipeline_schedule.h"

namespace loom::train {

// The order of a schedule, which is compute alone.
void check_order(const PipelineSchedule& schedule);

// `lists` are the schedule's order with gathers, reductions and messages put in, alone or in batches.
void check_lists(const PipelineSchedule& schedule, const PipelineLists& lists);

}  // namespace loom::train
