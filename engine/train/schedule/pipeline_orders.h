// The order of each schedule, by the software whose rules it follows. Private to engine/train/schedule.
//
// Rules    make_pipeline_schedule() has checked the job: counts, and options that the schedule reads.
// Errors   ConfigError for micro-batches or values of options that the software refuses.
// Threads  any.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/train/schedule/pipeline_schedule.h"

namespace loom::train {

PipelineSchedule torch_gpipe(const PipelineJob& job);
PipelineSchedule torch_1f1b(const PipelineJob& job);
PipelineSchedule torch_interleaved_1f1b(const PipelineJob& job);
PipelineSchedule torch_interleaved_zero_bubble(const PipelineJob& job);
PipelineSchedule torch_looped_bfs(const PipelineJob& job);
PipelineSchedule torch_zbv_zero_bubble(const PipelineJob& job);
PipelineSchedule torch_dualpipev(const PipelineJob& job);

PipelineSchedule megatron_1f1b(const PipelineJob& job);
PipelineSchedule megatron_interleaved_1f1b(const PipelineJob& job);

PipelineSchedule mindspeed_interleaved_1f1b(const PipelineJob& job);
PipelineSchedule mindspeed_nanopipe(const PipelineJob& job);
PipelineSchedule mindspeed_dualpipev(const PipelineJob& job);

// --- what several of them have in common ---

// Without an order: stages dealt to the ranks in turn, or as a V.
PipelineSchedule stages_in_turn(const PipelineJob& job);
PipelineSchedule stages_in_v(const PipelineJob& job);

struct WarmUp {
  std::int64_t per_rank_behind = 2;  // forwards more for each rank that follows
  std::int64_t more = 0;
};

// Without an order: `warmup` of interleaved 1F1B with `group`, and the tables.
PipelineSchedule interleaved_tables(const PipelineJob& job, std::int64_t group, const WarmUp& warm_up = {});
// Stage and micro-batch of the forward or backward of a number on a rank, by the tables.
PipelineAction numbered_forward(const PipelineSchedule& schedule, std::int64_t rank, std::int64_t number);
PipelineAction numbered_backward(const PipelineSchedule& schedule, std::int64_t rank, std::int64_t number);
// Warm-up forwards, then a forward and a backward in turn or together, then the other backwards; and the graph order.
void order_forwards_and_backwards(PipelineSchedule& schedule, bool together = false);

PipelineSchedule dualpipev(const PipelineJob& job, bool runs_together, bool detaches_last_weights);

}  // namespace loom::train
