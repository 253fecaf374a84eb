#include <algorithm>

#include "engine/core/error.h"
#include "engine/train/schedule/pipeline_orders.h"

namespace loom::train {
namespace {

using enum PipelineKind;

// Torch takes as many rounds as there are full sets of `ranks` micro-batches, all of one size.
std::int64_t group_of(const PipelineJob& job) {
  const std::int64_t rounds = std::max<std::int64_t>(1, job.micro_batches / job.ranks);
  if (job.micro_batches % rounds != 0) {
    config_error(
        "{} of dialect torch splits its micro-batches into {} rounds ({} micro-batches div {} ranks), and {} "
        "does not divide by {}; write {} or {} micro-batches",
        job.schedule, rounds, job.micro_batches, job.ranks, job.micro_batches, rounds,
        job.micro_batches / rounds * rounds, (rounds + 1) * job.ranks);
  }
  return job.micro_batches / rounds;
}

// What one rank of zbv_zero_bubble does. The rank's stages are `front` and `back`; each kind counts its micro-batches.
class ZeroBubbleV {
 public:
  ZeroBubbleV(const PipelineJob& job, std::int64_t rank)
      : front_{.stage = rank},
        back_{.stage = 2 * job.ranks - 1 - rank},
        micro_batches_(job.micro_batches),
        // The pattern needs so many to be full; what is too much is left out.
        pattern_(std::max(2 * job.ranks - 1, job.micro_batches)),
        rank_(rank),
        ranks_(job.ranks) {}

  PipelineList list() && {
    warm_up();
    while (back_.forwards < front_.forwards || front_.forwards < pattern_) steady();
    for (std::int64_t i = 0; i < rank_; ++i) input(front_), input(back_);
    for (std::int64_t i = rank_; i < ranks_; ++i) input(front_), weights(front_);
    while (back_.weights < back_.inputs) weights(back_);
    while (front_.weights < front_.inputs) weights(front_);
    return std::move(list_);
  }

 private:
  struct Stage {
    std::int64_t stage = 0;
    std::int64_t forwards = 0;
    std::int64_t inputs = 0;
    std::int64_t weights = 0;
  };

  void warm_up() {
    for (std::int64_t i = 0; i < 2 * (ranks_ - rank_) - 1; ++i) forward(front_);
    for (std::int64_t i = 0; i < rank_; ++i) forward(back_), forward(front_);
    for (std::int64_t i = rank_; i < ranks_; ++i) forward(back_), whole(back_);
  }
  void steady() {
    if (front_.forwards < pattern_) forward(front_);
    whole(front_);
    forward(back_);
    whole(back_);
  }

  void forward(Stage& stage) { add(kForward, stage.stage, stage.forwards++); }
  void input(Stage& stage) { add(kBackwardInput, stage.stage, stage.inputs++); }
  void weights(Stage& stage) { add(kBackwardWeight, stage.stage, stage.weights++); }
  void whole(Stage& stage) { input(stage), weights(stage); }
  void add(PipelineKind kind, std::int64_t stage, std::int64_t micro_batch) {
    if (micro_batch < micro_batches_) list_.emplace_back(kind, stage, micro_batch);
  }

  Stage front_;
  Stage back_;
  const std::int64_t micro_batches_;
  const std::int64_t pattern_;
  const std::int64_t rank_;
  const std::int64_t ranks_;
  PipelineList list_;
};

// 1F1B whose backwards are split. A rank computes its first weights `rank` backwards late, and all in their order.
PipelineList zero_bubble_list(const PipelineSchedule& tables, std::int64_t rank) {
  const auto all = static_cast<std::int64_t>(tables.table_chunk.size());
  const std::int64_t warmup = tables.warmup[static_cast<std::size_t>(rank)];
  PipelineList list;
  for (std::int64_t step = 0; step < all + warmup; ++step) {
    const std::int64_t backward = step - warmup;
    if (step < all) {
      const PipelineAction action = numbered_forward(tables, rank, step);
      list.emplace_back(kForward, action.stage, action.micro_batch);
    }
    if (backward >= 0 && backward < all) {
      const PipelineAction action = numbered_backward(tables, rank, backward);
      list.emplace_back(kBackwardInput, action.stage, action.micro_batch);
    }
    if (backward >= rank && backward < all) {
      const PipelineAction action = numbered_backward(tables, rank, backward - rank);
      list.emplace_back(kBackwardWeight, action.stage, action.micro_batch);
    }
  }
  for (std::int64_t late = std::max<std::int64_t>(0, all - rank); late < all; ++late) {
    const PipelineAction action = numbered_backward(tables, rank, late);
    list.emplace_back(kBackwardWeight, action.stage, action.micro_batch);
  }
  return list;
}

}  // namespace

PipelineSchedule torch_gpipe(const PipelineJob& job) {
  PipelineSchedule schedule = stages_in_turn(job);
  for (std::int64_t rank = 0; rank < job.ranks; ++rank) {
    for (const PipelineKind kind : {kForward, kBackward}) {
      for (std::int64_t i = 0; i < job.micro_batches; ++i) {
        schedule.order[static_cast<std::size_t>(rank)].emplace_back(kind, rank, i);
      }
    }
  }
  return schedule;
}

PipelineSchedule torch_1f1b(const PipelineJob& job) {
  if (job.micro_batches < job.ranks) {
    config_error(
        "1f1b of dialect torch needs a micro-batch for each of its {} ranks, and there are {}; write {} "
        "micro-batches or more, or dialect megatron, which runs it",
        job.ranks, job.micro_batches, job.ranks);
  }
  return megatron_1f1b(job);
}

PipelineSchedule torch_interleaved_1f1b(const PipelineJob& job) {
  PipelineSchedule schedule = interleaved_tables(job, group_of(job));
  order_forwards_and_backwards(schedule);
  return schedule;
}

PipelineSchedule torch_interleaved_zero_bubble(const PipelineJob& job) {
  PipelineSchedule schedule = interleaved_tables(job, group_of(job), {.per_rank_behind = 1});
  for (std::int64_t rank = 0; rank < job.ranks; ++rank) {
    schedule.order[static_cast<std::size_t>(rank)] = zero_bubble_list(schedule, rank);
  }
  return schedule;
}

PipelineSchedule torch_looped_bfs(const PipelineJob& job) {
  PipelineSchedule schedule = stages_in_turn(job);
  for (std::int64_t rank = 0; rank < job.ranks; ++rank) {
    PipelineList& list = schedule.order[static_cast<std::size_t>(rank)];
    for (std::int64_t chunk = 0; chunk < job.stages_per_rank; ++chunk) {
      for (std::int64_t i = 0; i < job.micro_batches; ++i) list.emplace_back(kForward, chunk * job.ranks + rank, i);
    }
    for (std::int64_t chunk = job.stages_per_rank - 1; chunk >= 0; --chunk) {
      for (std::int64_t i = job.micro_batches - 1; i >= 0; --i) {
        list.emplace_back(kBackward, chunk * job.ranks + rank, i);
      }
    }
  }
  return schedule;
}

PipelineSchedule torch_zbv_zero_bubble(const PipelineJob& job) {
  PipelineSchedule schedule = stages_in_v(job);
  for (std::int64_t rank = 0; rank < job.ranks; ++rank) {
    schedule.order[static_cast<std::size_t>(rank)] = ZeroBubbleV(job, rank).list();
  }
  return schedule;
}

PipelineSchedule torch_dualpipev(const PipelineJob& job) {
  if (job.micro_batches < 2 * job.ranks) {
    config_error(
        "dualpipev of dialect torch needs a micro-batch for each of its {} stages, and there are {}; write {} "
        "micro-batches or more",
        2 * job.ranks, job.micro_batches, 2 * job.ranks);
  }
  return dualpipev(job, true, true);
}

}  // namespace loom::train
