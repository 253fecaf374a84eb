#include "engine/train/schedule/pipeline_time.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "engine/train/schedule/pipeline_check.h"
#include "engine/train/schedule/pipeline_run.h"

namespace loom::train {
namespace {

using enum PipelineKind;

// What one kind of action adds to a count, and the most that it was.
class Peak {
 public:
  void add(int change) {
    now_ += change;
    most_ = std::max(most_, now_);
  }
  std::int64_t most() const { return most_; }

 private:
  std::int64_t now_ = 0;
  std::int64_t most_ = 0;
};

int change(PipelineKind kind, std::initializer_list<PipelineKind> adds, std::initializer_list<PipelineKind> takes) {
  const auto has = [kind](const auto& kinds) { return std::ranges::find(kinds, kind) != kinds.end(); };
  return has(adds) ? 1 : has(takes) ? -1 : 0;
}

void add_peaks(const PipelineList& list, PipelineFigures& figures) {
  Peak activations, until_input, waiting;
  for (const PipelineStep& step : list) {
    for (const PipelineAction& action : step.actions) {
      activations.add(change(action.kind, {kForward, kRecompute}, {kBackward, kBackwardWeight}));
      until_input.add(change(action.kind, {kForward, kRecompute}, {kBackward, kBackwardInput}));
      waiting.add(change(action.kind, {kBackwardInput}, {kBackwardWeight}));
    }
  }
  figures.peak_activations.push_back(activations.most());
  figures.peak_until_input_gradient.push_back(until_input.most());
  figures.peak_weight_gradients_waiting.push_back(waiting.most());
}

// From each rank to each, the messages of one side in the order of its list.
using Traffic = std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::size_t>>;

bool is_first_in_first_out(const PipelineSchedule& schedule, const PipelineLists& lists) {
  const PipelineTransfers transfers(schedule.stage_to_rank.size(), schedule.micro_batches);
  const auto rank_of = [&](std::int64_t stage) { return schedule.stage_to_rank[static_cast<std::size_t>(stage)]; };
  Traffic sent, received;
  for (const PipelineList& list : lists) {
    for (const PipelineStep& step : list) {
      for (const PipelineAction& action : step.actions) {
        if (!is_message(action.kind)) continue;
        const std::size_t transfer = transfers.carried_by(action);
        const std::pair way = {rank_of(transfers.sending_stage(transfer)),
                               rank_of(transfers.receiving_stage(transfer))};
        const bool sends = action.kind == kSendForward || action.kind == kSendBackward;
        (sends ? sent : received)[way].push_back(transfer);
      }
    }
  }
  return sent == received;
}

void add_gathers(const PipelineList& list, PipelineListFigures& figures) {
  std::int64_t unshards = 0;
  Peak gathered;
  for (const PipelineStep& step : list) {
    const PipelineKind kind = step.actions[0].kind;
    if (kind == kUnshard) ++unshards;
    gathered.add(change(kind, {kUnshard}, {kReshard}));
  }
  figures.unshards.push_back(unshards);
  figures.peak_unsharded_stages.push_back(gathered.most());
}

}  // namespace

PipelineFigures pipeline_figures(const PipelineSchedule& schedule) {
  check_order(schedule);
  PipelineFigures figures;
  figures.makespan = PipelineRun(schedule, schedule.order, {}).makespan();
  for (const PipelineList& list : schedule.order) {
    std::int64_t busy = 0;
    for (const PipelineStep& step : list) busy += pipeline_duration(step);
    figures.busy.push_back(busy);
    add_peaks(list, figures);
  }
  const auto all = static_cast<double>(std::reduce(figures.busy.begin(), figures.busy.end()));
  figures.bubble = 1 - all / (static_cast<double>(figures.busy.size()) * static_cast<double>(figures.makespan));
  return figures;
}

PipelineListFigures pipeline_list_figures(const PipelineSchedule& schedule, const PipelineLists& lists) {
  check_lists(schedule, lists);
  PipelineListFigures figures;
  for (const PipelineList& list : lists) add_gathers(list, figures);
  figures.first_in_first_out = is_first_in_first_out(schedule, lists);
  figures.makespan_waiting = PipelineRun(schedule, lists, {.has_messages = true}).makespan();
  figures.runs_on_one_stream = PipelineRun(schedule, lists, {.has_messages = true, .one_stream = true}).is_finished();
  return figures;
}

}  // namespace loom::train
