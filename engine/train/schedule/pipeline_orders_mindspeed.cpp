#include <algorithm>

#include "engine/core/error.h"
#include "engine/train/schedule/pipeline_orders.h"

namespace loom::train {
namespace {

using enum PipelineKind;

void check_full_groups(const PipelineJob& job) {
  if (job.micro_batches % job.ranks == 0) return;
  const std::int64_t below = job.micro_batches / job.ranks * job.ranks;
  config_error(
      "{} of dialect mindspeed needs micro-batches that divide by its {} ranks, and there are {}; write {} "
      "micro-batches",
      job.schedule, job.ranks, job.micro_batches, below + job.ranks);
}

// Which forwards of a rank keep only their input, so that idle slots before backwards recompute them: as many of the
// second group as the rank has idle slots, and of each later group those whose backward comes after an idle slot.
class BubbleRecompute {
 public:
  BubbleRecompute(const PipelineJob& job, std::int64_t rank, std::int64_t warmup)
      : ranks_(job.ranks), chunks_(job.stages_per_rank), rank_(rank), warmup_(warmup) {
    const std::int64_t groups = job.micro_batches / job.ranks;
    if (groups < 2) return;
    slots_ = std::max<std::int64_t>(0, warmup + 1 - chunks_ * ranks_);
    if (slots_ == 0 || groups < 3) return;
    steady_groups_ = groups - 3;
    tail_ = steady_groups_ == 0 ? 2 + 2 * rank : 1;
    if (steady_groups_ == 0 && tail_ >= ranks_ - 1 - 2 * rank) {
      tail_ = 0;
      steady_groups_ = 1;
    }
  }

  // How many are recomputed between the last forward and the backwards after it.
  std::int64_t slots() const { return slots_; }

  bool keeps_only_input(std::int64_t number) const {
    const std::int64_t first = chunks_ * ranks_;  // forwards of the first group
    if (number < first || slots_ == 0) return false;
    if (number < first + slots_) return true;
    const std::int64_t group = number / first;
    const std::int64_t in_group = number % first;
    if (number < warmup_ || in_group >= ranks_ || group < 2) return false;
    return in_group >= (group < 2 + steady_groups_ ? 1 + 2 * rank_ : ranks_ - tail_);
  }

 private:
  const std::int64_t ranks_;
  const std::int64_t chunks_;
  const std::int64_t rank_;
  const std::int64_t warmup_;
  std::int64_t slots_ = 0;
  std::int64_t steady_groups_ = 0;
  std::int64_t tail_ = 0;
};

// A rank's 1F1B list with its recomputations.
class RecomputedList {
 public:
  explicit RecomputedList(std::int64_t backwards_before_cooldown) : cooldown_(backwards_before_cooldown) {}

  void forward(PipelineAction action, bool keeps_only_input) {
    if (keeps_only_input) waiting_.push_back(action);
    list_.emplace_back(keeps_only_input ? kForwardKeepingInput : kForward, action.stage, action.micro_batch);
  }
  // `slots` recomputations come one each before the first backwards of the cool-down, in the order of their forwards.
  void backward(const PipelineAction& action, std::int64_t slots) {
    if (backwards_ >= cooldown_ && backwards_ < cooldown_ + slots && !waiting_.empty()) recompute(waiting_.begin());
    ++backwards_;
    const auto own = std::ranges::find_if(waiting_, [&](const PipelineAction& forward) {
      return forward.stage == action.stage && forward.micro_batch == action.micro_batch;
    });
    if (own != waiting_.end()) recompute(own);
    list_.emplace_back(kBackward, action.stage, action.micro_batch);
  }
  PipelineList list() && { return std::move(list_); }

 private:
  void recompute(std::vector<PipelineAction>::iterator forward) {
    list_.emplace_back(kRecompute, forward->stage, forward->micro_batch);
    waiting_.erase(forward);
  }

  const std::int64_t cooldown_;
  std::int64_t backwards_ = 0;
  std::vector<PipelineAction> waiting_;  // forwards to recompute
  PipelineList list_;
};

PipelineList recomputed(const PipelineJob& job, const PipelineList& plain, std::int64_t rank, std::int64_t warmup) {
  const BubbleRecompute bubble(job, rank, warmup);
  RecomputedList list(job.micro_batches * job.stages_per_rank - warmup);
  std::int64_t forwards = 0;
  for (const PipelineStep& step : plain) {
    const PipelineAction& action = step.actions[0];
    if (action.kind == kForward) {
      list.forward(action, job.options.recompute_in_advance || bubble.keeps_only_input(forwards++));
    } else {
      list.backward(action, job.options.recompute_in_bubble ? bubble.slots() : 0);
    }
  }
  return std::move(list).list();
}

// The first `split` backwards compute the gradients of their inputs, and those of their weights at the end.
void split_first_backwards(PipelineList& list, std::int64_t split) {
  PipelineList weights;
  for (PipelineStep& step : list) {
    PipelineAction& action = step.actions[0];
    if (action.kind != kBackward || std::ssize(weights) == split) continue;
    action.kind = kBackwardInput;
    weights.emplace_back(kBackwardWeight, action.stage, action.micro_batch);
  }
  list.insert(list.end(), weights.begin(), weights.end());
}

}  // namespace

PipelineSchedule mindspeed_interleaved_1f1b(const PipelineJob& job) {
  const bool in_advance = job.options.recompute_in_advance;
  if (in_advance && job.options.recompute_in_bubble) {
    config_error(
        "recompute_in_bubble and recompute_in_advance are both set, and each decides when to recompute; set one");
  }
  check_full_groups(job);
  PipelineSchedule schedule = interleaved_tables(job, job.ranks);
  order_forwards_and_backwards(schedule);
  if (!in_advance && !job.options.recompute_in_bubble) return schedule;
  for (std::int64_t rank = 0; rank < job.ranks; ++rank) {
    PipelineList& list = schedule.order[static_cast<std::size_t>(rank)];
    list = recomputed(job, list, rank, schedule.warmup[static_cast<std::size_t>(rank)]);
  }
  schedule.graph_order.clear();
  return schedule;
}

PipelineSchedule mindspeed_nanopipe(const PipelineJob& job) {
  check_full_groups(job);
  const bool runs_all_forwards_first = job.micro_batches == job.ranks;
  const std::int64_t all = job.micro_batches * job.stages_per_rank;
  PipelineSchedule schedule = interleaved_tables(job, job.ranks, {.more = runs_all_forwards_first ? all : 0});
  order_forwards_and_backwards(schedule);
  schedule.graph_order.clear();
  for (std::size_t rank = 0; rank < schedule.order.size(); ++rank) {
    split_first_backwards(schedule.order[rank], schedule.warmup[0] - schedule.warmup[rank]);
  }
  return schedule;
}

PipelineSchedule mindspeed_dualpipev(const PipelineJob& job) {
  const std::int64_t least = 2 * job.ranks - 1;
  if (job.micro_batches < least) {
    config_error(
        "dualpipev of dialect mindspeed needs {} micro-batches or more with {} ranks, and there are {}; write {}",
        least, job.ranks, job.micro_batches, least);
  }
  return dualpipev(job, job.options.fb_overlap, job.options.dw_detach);
}

}  // namespace loom::train
