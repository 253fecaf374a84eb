#include "engine/train/schedule/pipeline_check.h"

#include <algorithm>
#include <fmt/format.h>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/core/error.h"
#include "engine/train/schedule/pipeline_run.h"

namespace loom::train {
namespace {

using enum PipelineKind;

// What ran of one micro-batch on one stage.
struct StageProgress {
  bool forward = false;
  bool keeps_only_input = false;
  bool recompute = false;
  bool backward = false;
  bool input_gradient = false;
  bool weight_gradient = false;

  // Why `kind` may not run now, "" if it may; then it has run.
  std::string_view take(PipelineKind kind) {
    switch (kind) {
      case kForward:
      case kForwardKeepingInput:
        if (forward) return "a forward of a micro-batch runs once";
        forward = true;
        keeps_only_input = kind == kForwardKeepingInput;
        return "";
      case kRecompute:
        if (!keeps_only_input || recompute) return "a recomputation R runs once, behind its forward C";
        recompute = true;
        return "";
      case kBackward:
      case kBackwardInput:
        if (backward || input_gradient) return "a micro-batch has one backward: B, or I and W";
        if (!forward) return "a backward comes behind its forward";
        if (keeps_only_input && !recompute) return "the backward of a C comes behind its recomputation R";
        (kind == kBackward ? backward : input_gradient) = true;
        return "";
      default:
        if (!input_gradient || weight_gradient) return "a W runs once, behind its I";
        weight_gradient = true;
        return "";
    }
  }
  // The kind that is missing.
  std::optional<PipelineKind> missing() const {
    if (!forward) return kForward;
    if (!backward && !input_gradient) return kBackward;
    if (input_gradient && !weight_gradient) return kBackwardWeight;
    return std::nullopt;
  }
};

class Completeness {
 public:
  explicit Completeness(const PipelineSchedule& schedule)
      : schedule_(schedule),
        progress_(schedule.stage_to_rank.size() * static_cast<std::size_t>(schedule.micro_batches)) {}

  void check(const PipelineLists& lists) {
    for (std::size_t rank = 0; rank < lists.size(); ++rank) {
      for (const PipelineStep& step : lists[rank]) take(rank, step);
    }
    for (std::size_t i = 0; i < progress_.size(); ++i) {
      const auto missing = progress_[i].missing();
      if (!missing) continue;
      const auto stage = static_cast<std::int64_t>(i) / schedule_.micro_batches;
      const auto micro_batch = static_cast<std::int64_t>(i) % schedule_.micro_batches;
      config_error("rank {} has no {}; every stage runs every micro-batch forwards and backwards: add it to its list",
                   schedule_.stage_to_rank[static_cast<std::size_t>(stage)],
                   to_text(PipelineAction{*missing, stage, micro_batch}));
    }
  }

 private:
  void take(std::size_t rank, const PipelineStep& step) {
    const auto& actions = step.actions;
    if (step.join == PipelineJoin::kOverlapped && actions[0].stage == actions[1].stage &&
        actions[0].micro_batch == actions[1].micro_batch) {
      config_error("rank {} has {}, and a backward comes behind its forward: write {} {}", rank, to_text(step),
                   to_text(actions[0]), to_text(actions[1]));
    }
    for (const PipelineAction& action : actions) take(rank, action);
  }
  void take(std::size_t rank, const PipelineAction& action) {
    const std::size_t stages = schedule_.stage_to_rank.size();
    if (action.stage < 0 || std::cmp_greater_equal(action.stage, stages)) {
      config_error("rank {} has {}, and stages are numbered from 0 to {}: write one of them", rank, to_text(action),
                   stages - 1);
    }
    const std::int64_t own = schedule_.stage_to_rank[static_cast<std::size_t>(action.stage)];
    if (std::cmp_not_equal(own, rank)) {
      config_error("rank {} has {}, and stage {} is on rank {}: write it in that rank's list", rank, to_text(action),
                   action.stage, own);
    }
    if (!has_micro_batch(action.kind)) return;
    if (action.micro_batch < 0 || action.micro_batch >= schedule_.micro_batches) {
      config_error("rank {} has {}, and micro-batches are numbered from 0 to {}: write one of them", rank,
                   to_text(action), schedule_.micro_batches - 1);
    }
    if (!is_compute(action.kind)) return;
    StageProgress& progress =
        progress_[static_cast<std::size_t>(action.stage * schedule_.micro_batches + action.micro_batch)];
    if (const std::string_view why = progress.take(action.kind); !why.empty()) {
      config_error("rank {} cannot run {} where its list has it: {}; move or remove it", rank, to_text(action), why);
    }
  }

  const PipelineSchedule& schedule_;
  std::vector<StageProgress> progress_;  // by stage and micro-batch
};

// The messages of all ranks, each sent once behind its action and received once before the action that needs it.
class Messages {
 public:
  explicit Messages(const PipelineSchedule& schedule)
      : schedule_(schedule),
        transfers_(schedule.stage_to_rank.size(), schedule.micro_batches),
        sent_(transfers_.size(), false),
        received_(transfers_.size(), false),
        made_(transfers_.size(), false) {}

  void check(const PipelineLists& lists) {
    for (std::size_t rank = 0; rank < lists.size(); ++rank) {
      for (const PipelineStep& step : lists[rank]) {
        for (const PipelineAction& action : step.actions) needs(rank, action);
        for (const PipelineAction& action : step.actions) takes(rank, action);
      }
    }
    for (std::size_t i = 0; i < sent_.size(); ++i) {
      if (sent_[i] == received_[i]) continue;
      const std::int64_t stage = sent_[i] ? transfers_.receiving_stage(i) : transfers_.sending_stage(i);
      config_error("{} of micro-batch {} from stage {} to stage {} is {}; add the other side to the list of rank {}",
                   transfers_.is_gradient(i) ? "the gradient" : "the output", transfers_.micro_batch(i),
                   transfers_.sending_stage(i), transfers_.receiving_stage(i),
                   sent_[i] ? "sent and not received" : "received and not sent",
                   schedule_.stage_to_rank[static_cast<std::size_t>(stage)]);
    }
  }

 private:
  bool is_on(std::int64_t stage, std::size_t rank) const {
    return std::cmp_equal(schedule_.stage_to_rank[static_cast<std::size_t>(stage)], rank);
  }
  void needs(std::size_t rank, const PipelineAction& action) const {
    const auto needed = is_compute(action.kind) ? transfers_.needed_by(action) : std::nullopt;
    if (!needed || is_on(transfers_.sending_stage(*needed), rank) || received_[*needed]) return;
    const PipelineKind kind = transfers_.is_gradient(*needed) ? kReceiveBackward : kReceiveForward;
    config_error("rank {} runs {} without {} before it; add that in front of it", rank, to_text(action),
                 to_text(PipelineAction{kind, action.stage, action.micro_batch}));
  }
  void takes(std::size_t rank, const PipelineAction& action) {
    if (is_compute(action.kind)) {
      if (const auto made = transfers_.made_by(action)) made_[*made] = true;
    } else if (is_message(action.kind)) {
      message(rank, action);
    }
  }
  void message(std::size_t rank, const PipelineAction& action) {
    const bool sends = action.kind == kSendForward || action.kind == kSendBackward;
    const bool upwards = action.kind == kSendForward || action.kind == kReceiveBackward;
    const std::int64_t other = action.stage + (upwards ? 1 : -1);
    if (other < 0 || std::cmp_greater_equal(other, schedule_.stage_to_rank.size()) || is_on(other, rank)) {
      config_error("rank {} has {}, and there is no stage {} on another rank; remove it", rank, to_text(action), other);
    }
    const std::size_t transfer = transfers_.carried_by(action);
    if (sends && !made_[transfer]) {
      config_error("rank {} has {} before the action that makes it; move it behind that", rank, to_text(action));
    }
    auto&& done = sends ? sent_[transfer] : received_[transfer];
    if (done) config_error("rank {} has {} twice; a message passes once: remove one", rank, to_text(action));
    done = true;
  }

  const PipelineSchedule& schedule_;
  const PipelineTransfers transfers_;
  std::vector<bool> sent_;
  std::vector<bool> received_;
  std::vector<bool> made_;
};

// Of a list with gathers.
void check_gathered(std::size_t rank, const PipelineList& list, std::size_t stages) {
  std::vector<bool> is_gathered(stages, false);
  const auto gathers = [](const PipelineStep& step) { return step.actions[0].kind == kUnshard; };
  if (std::ranges::none_of(list, gathers)) return;
  for (const PipelineStep& step : list) {
    for (const PipelineAction& action : step.actions) {
      const auto stage = static_cast<std::size_t>(action.stage);
      if (action.kind == kUnshard || action.kind == kReshard) {
        is_gathered[stage] = action.kind == kUnshard;
      } else if (is_compute(action.kind) && !is_gathered[stage]) {
        config_error("rank {} runs {} while stage {} is not gathered; add {}UNSHARD in front of it", rank,
                     to_text(action), action.stage, action.stage);
      }
    }
  }
}

void check_runs(const PipelineSchedule& schedule, const PipelineLists& lists, bool has_messages) {
  const PipelineRun run(schedule, lists, {.has_messages = has_messages});
  if (run.is_finished()) return;
  config_error("the order of the pipeline cannot run, because ranks wait for each other: {}; move one of these actions",
               run.cycle());
}

void check_ranks(const PipelineSchedule& schedule, const PipelineLists& lists) {
  const std::int64_t last = schedule.stage_to_rank.empty() ? 0 : std::ranges::max(schedule.stage_to_rank);
  if (std::cmp_less(last, lists.size()) && !schedule.stage_to_rank.empty() && schedule.micro_batches >= 1) return;
  config_error(
      "the order of a pipeline has {} lists, {} stages, the last rank {} and {} micro-batches; it needs a list "
      "for each rank, and a stage and a micro-batch at least",
      lists.size(), schedule.stage_to_rank.size(), last, schedule.micro_batches);
}

}  // namespace

void check_order(const PipelineSchedule& schedule) {
  check_ranks(schedule, schedule.order);
  for (std::size_t rank = 0; rank < schedule.order.size(); ++rank) {
    for (const PipelineStep& step : schedule.order[rank]) {
      if (is_compute(step.actions[0].kind)) continue;
      config_error(
          "rank {} has {}, and an order is compute alone: F, B, I, W, C, R; remove it, it follows from the "
          "order",
          rank, to_text(step));
    }
  }
  Completeness(schedule).check(schedule.order);
  check_runs(schedule, schedule.order, false);
}

void check_lists(const PipelineSchedule& schedule, const PipelineLists& lists) {
  check_ranks(schedule, lists);
  Completeness(schedule).check(lists);
  Messages(schedule).check(lists);
  for (std::size_t rank = 0; rank < lists.size(); ++rank) {
    check_gathered(rank, lists[rank], schedule.stage_to_rank.size());
  }
  check_runs(schedule, lists, true);
}

}  // namespace loom::train
