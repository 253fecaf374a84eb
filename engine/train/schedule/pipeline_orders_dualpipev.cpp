#include <queue>

#include "engine/train/schedule/pipeline_orders.h"

namespace loom::train {
namespace {

using enum PipelineKind;

// What one rank of dualpipev does with its stages: `front` of the way there, `back` of the way back.
class DualPipeV {
 public:
  DualPipeV(const PipelineJob& job, std::int64_t rank, bool runs_together, bool detaches_last_weights)
      : runs_together_(runs_together),
        detaches_(detaches_last_weights),
        rank_(rank),
        behind_(job.ranks - rank - 1),
        steady_(job.micro_batches - 2 * job.ranks + rank + 1),
        front_{.stage = rank},
        back_{.stage = 2 * job.ranks - 1 - rank} {}

  PipelineList list() && {
    for (std::int64_t i = 0; i < 2 * behind_; ++i) forward(front_);
    for (std::int64_t i = 0; i < rank_ + 1; ++i) forward(front_), forward(back_);
    for (std::int64_t i = 0; i < behind_; ++i) input(back_), oldest_weights(), forward(back_);
    for (std::int64_t i = 0; i < steady_; ++i) {
      both(front_, back_, i == 0 && behind_ == 0);
      both(back_, front_);
    }
    for (std::int64_t i = 0; i < behind_; ++i) whole(back_), both(back_, front_);
    last_backwards();
    while (!waiting_.empty()) oldest_weights();
    return std::move(list_);
  }

 private:
  struct Stage {
    std::int64_t stage = 0;
    std::int64_t forwards = 0;
    std::int64_t backwards = 0;
  };

  // Those of both stages in turn, then of the front alone. From the middle of the first part on the gradients of the
  // weights are detached.
  void last_backwards() {
    const std::int64_t turns = rank_ + 1;
    const std::int64_t first_detached = turns / 2 * 2 + (rank_ % 2 == 0 ? 1 : 0);
    for (std::int64_t i = 0; i < 2 * turns; ++i) {
      Stage& stage = i % 2 == 0 ? back_ : front_;
      detaches_&& i >= first_detached ? input(stage) : whole(stage);
    }
    for (std::int64_t i = 0; i < behind_; ++i) {
      oldest_weights();
      detaches_ ? input(front_) : whole(front_);
    }
  }

  void forward(Stage& stage) { list_.emplace_back(kForward, stage.stage, stage.forwards++); }
  void whole(Stage& stage) { list_.emplace_back(kBackward, stage.stage, stage.backwards++); }
  void input(Stage& stage) {
    waiting_.emplace(kBackwardWeight, stage.stage, stage.backwards);
    list_.emplace_back(kBackwardInput, stage.stage, stage.backwards++);
  }
  void oldest_weights() {
    if (waiting_.empty()) return;
    list_.push_back(waiting_.front());
    waiting_.pop();
  }
  void both(Stage& ahead, Stage& back, bool apart = false) {
    if (apart || !runs_together_) {
      forward(ahead), whole(back);
      return;
    }
    const std::vector<PipelineAction> pair = {{kForward, ahead.stage, ahead.forwards++},
                                              {kBackward, back.stage, back.backwards++}};
    list_.emplace_back(PipelineJoin::kOverlapped, pair);
  }

  const bool runs_together_;
  const bool detaches_;
  const std::int64_t rank_;
  const std::int64_t behind_;  // ranks that follow
  const std::int64_t steady_;
  Stage front_;
  Stage back_;
  std::queue<PipelineStep> waiting_;  // gradients of weights
  PipelineList list_;
};

}  // namespace

PipelineSchedule dualpipev(const PipelineJob& job, bool runs_together, bool detaches_last_weights) {
  PipelineSchedule schedule = stages_in_v(job);
  for (std::int64_t rank = 0; rank < job.ranks; ++rank) {
    schedule.order[static_cast<std::size_t>(rank)] = DualPipeV(job, rank, runs_together, detaches_last_weights).list();
  }
  return schedule;
}

}  // namespace loom::train
