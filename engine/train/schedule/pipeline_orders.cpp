#include "engine/train/schedule/pipeline_orders.h"

#include <algorithm>

namespace loom::train {
namespace {

using enum PipelineKind;

std::int64_t stages_per_rank(const PipelineSchedule& schedule) {
  return static_cast<std::int64_t>(schedule.stage_to_rank.size() / schedule.order.size());
}

PipelineAction numbered(const PipelineSchedule& schedule, PipelineKind kind, std::int64_t rank, std::int64_t chunk,
                        std::int64_t number) {
  const auto ranks = static_cast<std::int64_t>(schedule.order.size());
  return {kind, chunk * ranks + rank, schedule.table_micro_batch[static_cast<std::size_t>(number)]};
}

}  // namespace

PipelineSchedule stages_in_turn(const PipelineJob& job) {
  PipelineSchedule schedule{.micro_batches = job.micro_batches};
  for (std::int64_t stage = 0; stage < job.ranks * job.stages_per_rank; ++stage) {
    schedule.stage_to_rank.push_back(stage % job.ranks);
  }
  schedule.order.resize(static_cast<std::size_t>(job.ranks));
  return schedule;
}

PipelineSchedule stages_in_v(const PipelineJob& job) {
  PipelineSchedule schedule = stages_in_turn(job);
  std::reverse(schedule.stage_to_rank.begin() + job.ranks, schedule.stage_to_rank.end());
  return schedule;
}

PipelineSchedule interleaved_tables(const PipelineJob& job, std::int64_t group, const WarmUp& warm_up) {
  PipelineSchedule schedule = stages_in_turn(job);
  for (std::int64_t first = 0; first < job.micro_batches; first += group) {
    const std::int64_t end = std::min(first + group, job.micro_batches);
    for (std::int64_t chunk = 0; chunk < job.stages_per_rank; ++chunk) {
      for (std::int64_t micro_batch = first; micro_batch < end; ++micro_batch) {
        schedule.table_micro_batch.push_back(micro_batch);
        schedule.table_chunk.push_back(chunk);
      }
    }
  }
  const std::int64_t all = job.micro_batches * job.stages_per_rank;
  for (std::int64_t rank = 0; rank < job.ranks; ++rank) {
    const std::int64_t behind = job.ranks - rank - 1;
    const std::int64_t forwards = (job.stages_per_rank - 1) * group + warm_up.per_rank_behind * behind + warm_up.more;
    schedule.warmup.push_back(std::min(forwards, all));
  }
  return schedule;
}

PipelineAction numbered_forward(const PipelineSchedule& schedule, std::int64_t rank, std::int64_t number) {
  return numbered(schedule, kForward, rank, schedule.table_chunk[static_cast<std::size_t>(number)], number);
}

PipelineAction numbered_backward(const PipelineSchedule& schedule, std::int64_t rank, std::int64_t number) {
  const std::int64_t chunk = stages_per_rank(schedule) - 1 - schedule.table_chunk[static_cast<std::size_t>(number)];
  return numbered(schedule, kBackward, rank, chunk, number);
}

void order_forwards_and_backwards(PipelineSchedule& schedule, bool together) {
  const auto ranks = static_cast<std::int64_t>(schedule.order.size());
  const auto all = static_cast<std::int64_t>(schedule.table_chunk.size());
  schedule.graph_order.resize(schedule.order.size());
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    PipelineList& list = schedule.order[static_cast<std::size_t>(rank)];
    std::vector<std::int64_t>& graph = schedule.graph_order[static_cast<std::size_t>(rank)];
    const std::int64_t warmup = schedule.warmup[static_cast<std::size_t>(rank)];
    for (std::int64_t number = 0; number < all + warmup; ++number) {
      PipelineList both;
      if (number < all) {
        const PipelineAction forward = numbered_forward(schedule, rank, number);
        both.emplace_back(forward.kind, forward.stage, forward.micro_batch);
        graph.push_back(forward.stage / ranks + 1);
      }
      if (number >= warmup) {
        const PipelineAction backward = numbered_backward(schedule, rank, number - warmup);
        both.emplace_back(backward.kind, backward.stage, backward.micro_batch);
        graph.push_back(-(backward.stage / ranks + 1));
      }
      if (together && both.size() == 2) {
        list.emplace_back(PipelineJoin::kOverlapped,
                          std::vector<PipelineAction>{both[0].actions[0], both[1].actions[0]});
      } else {
        list.insert(list.end(), both.begin(), both.end());
      }
    }
  }
}

}  // namespace loom::train
