#include "engine/train/schedule/pipeline_lowering.h"

#include <algorithm>
#include <map>
#include <set>

#include "engine/core/error.h"
#include "engine/train/schedule/pipeline_check.h"
#include "engine/train/schedule/pipeline_run.h"

namespace loom::train {
namespace {

using enum PipelineKind;

constexpr std::size_t kMostGathered = 3;

// The stages of the next actions from `at` on, each once. A pair counts whole, so that they may be one more.
std::vector<std::int64_t> next_stages(const PipelineList& list, std::size_t at) {
  std::vector<std::int64_t> stages;
  for (; at < list.size() && stages.size() < kMostGathered; ++at) {
    for (const PipelineAction& action : list[at].actions) {
      if (std::ranges::find(stages, action.stage) == stages.end()) stages.push_back(action.stage);
    }
  }
  return stages;
}

PipelineList with_gathers(const PipelineList& order) {
  PipelineList list;
  std::set<std::int64_t> gathered;
  const auto free = [&](const auto& is_done) {
    for (auto stage = gathered.begin(); stage != gathered.end();) {
      if (is_done(*stage)) {
        list.emplace_back(kReshard, *stage);
        stage = gathered.erase(stage);
      } else {
        ++stage;
      }
    }
  };
  for (std::size_t at = 0; at < order.size(); ++at) {
    const std::vector<std::int64_t> next = next_stages(order, at);
    free([&](std::int64_t stage) { return std::ranges::find(next, stage) == next.end(); });
    for (const std::int64_t stage : next) {
      if (gathered.insert(stage).second) list.emplace_back(kUnshard, stage);
    }
    list.push_back(order[at]);
  }
  free([](std::int64_t) { return true; });
  return list;
}

PipelineList with_reductions(const PipelineList& order, std::int64_t micro_batches) {
  PipelineList list;
  std::map<std::int64_t, std::int64_t> backwards;  // by stage
  for (const PipelineStep& step : order) {
    list.push_back(step);
    for (const PipelineAction& action : step.actions) {
      const bool ends = action.kind == kBackward || action.kind == kBackwardWeight;
      if (ends && ++backwards[action.stage] == micro_batches) list.emplace_back(kReduceGrad, action.stage);
    }
  }
  return list;
}

// Puts messages in. The ranks take turns; a rank whose next action misses something lets its turn pass.
class Messenger {
 public:
  Messenger(const PipelineSchedule& schedule, PipelineLists lists)
      : schedule_(schedule),
        transfers_(schedule.stage_to_rank.size(), schedule.micro_batches),
        lists_(std::move(lists)),
        at_(lists_.size(), 0),
        out_(lists_.size()),
        is_there_(transfers_.size(), false) {}

  PipelineLists run() && {
    bool moves = true;
    while (moves) {
      moves = false;
      for (std::size_t rank = 0; rank < lists_.size(); ++rank) moves = turn(rank) || moves;
    }
    for (std::size_t rank = 0; rank < lists_.size(); ++rank) {
      require(at_[rank] == lists_[rank].size(), "rank {} has a list that was checked and does not run", rank);
    }
    return std::move(out_);
  }

 private:
  bool turn(std::size_t rank) {
    if (at_[rank] == lists_[rank].size()) return false;
    const PipelineStep& step = lists_[rank][at_[rank]];
    for (const PipelineAction& action : step.actions) {
      const auto needed = transfers_.needed_by(action);
      if (needed && !is_there_[*needed]) return false;
    }
    out_[rank].push_back(step);
    for (const PipelineAction& action : step.actions) send(rank, action);
    ++at_[rank];
    return true;
  }
  void send(std::size_t rank, const PipelineAction& action) {
    const auto made = transfers_.made_by(action);
    if (!made) return;
    is_there_[*made] = true;
    const std::int64_t receiver = transfers_.receiving_stage(*made);
    const auto other = static_cast<std::size_t>(schedule_.stage_to_rank[static_cast<std::size_t>(receiver)]);
    if (other == rank) return;
    const bool gradient = transfers_.is_gradient(*made);
    out_[rank].emplace_back(gradient ? kSendBackward : kSendForward, action.stage, action.micro_batch);
    out_[other].emplace_back(gradient ? kReceiveBackward : kReceiveForward, receiver, action.micro_batch);
  }

  const PipelineSchedule& schedule_;
  const PipelineTransfers transfers_;
  const PipelineLists lists_;
  std::vector<std::size_t> at_;
  PipelineLists out_;
  std::vector<bool> is_there_;
};

}  // namespace

PipelineLists lower_pipeline(const PipelineSchedule& schedule) {
  check_order(schedule);
  PipelineLists lists;
  for (const PipelineList& order : schedule.order) {
    lists.push_back(with_reductions(with_gathers(order), schedule.micro_batches));
  }
  return Messenger(schedule, std::move(lists)).run();
}

}  // namespace loom::train
