#include <algorithm>

#include "engine/core/error.h"
#include "engine/train/schedule/pipeline_orders.h"

namespace loom::train {
namespace {

void check_group(const PipelineJob& job, std::int64_t group) {
  if (job.micro_batches < job.ranks) {
    config_error(
        "interleaved_1f1b of dialect megatron needs a micro-batch for each of its {} ranks, and there are {}; "
        "write {} micro-batches or more",
        job.ranks, job.micro_batches, job.ranks);
  }
  if (group < job.ranks || group > job.micro_batches) {
    config_error(
        "group is {}, and interleaved_1f1b of dialect megatron takes at least as many micro-batches in a row "
        "as it has ranks, and at most all; write {} to {}",
        group, job.ranks, job.micro_batches);
  }
  const std::int64_t rest = job.micro_batches % group;
  if (rest != 0 && rest < job.ranks) {
    const std::int64_t below = job.micro_batches - rest;
    config_error(
        "{} micro-batches in groups of {} leave a last group of {}, and it needs 0 or at least {} (its ranks); "
        "write {} or {} micro-batches, or another group",
        job.micro_batches, group, rest, job.ranks, below, below + job.ranks);
  }
}

}  // namespace

PipelineSchedule megatron_1f1b(const PipelineJob& job) {
  PipelineSchedule schedule = interleaved_tables(job, job.micro_batches, {.per_rank_behind = 1});
  order_forwards_and_backwards(schedule);
  schedule.table_micro_batch.clear();
  schedule.table_chunk.clear();
  schedule.graph_order.clear();
  return schedule;
}

PipelineSchedule megatron_interleaved_1f1b(const PipelineJob& job) {
  const PipelineOptions& options = job.options;
  if (options.overlap_p2p_warmup_flush && !options.overlap_p2p) {
    config_error(
        "overlap_p2p_warmup_flush is set without overlap_p2p, which it extends to warm-up and flush; set "
        "overlap_p2p too");
  }
  const std::int64_t group = options.group == 0 ? job.ranks : options.group;
  check_group(job, group);
  PipelineSchedule schedule = interleaved_tables(job, group, {.more = options.overlap_moe ? 1 : 0});
  order_forwards_and_backwards(schedule, options.overlap_moe);
  return schedule;
}

}  // namespace loom::train
