#include "engine/train/schedule/pipeline_run.h"

#include <algorithm>
#include <fmt/format.h>

namespace loom::train {
namespace {

using enum PipelineKind;

bool is_batch(const PipelineStep& step) { return is_message(step.actions[0].kind); }
bool is_send(PipelineKind kind) { return kind == kSendForward || kind == kSendBackward; }

}  // namespace

std::size_t PipelineTransfers::index(bool is_gradient, std::int64_t receiving_stage, std::int64_t micro_batch) const {
  return static_cast<std::size_t>(((is_gradient ? stages_ : 0) + receiving_stage) * micro_batches_ + micro_batch);
}

std::optional<std::size_t> PipelineTransfers::needed_by(const PipelineAction& action) const {
  if (is_forward(action.kind) && action.stage > 0) return index(false, action.stage, action.micro_batch);
  if (makes_input_gradient(action.kind) && action.stage + 1 < stages_) {
    return index(true, action.stage, action.micro_batch);
  }
  return std::nullopt;
}

std::optional<std::size_t> PipelineTransfers::made_by(const PipelineAction& action) const {
  if (is_forward(action.kind) && action.stage + 1 < stages_) return index(false, action.stage + 1, action.micro_batch);
  if (makes_input_gradient(action.kind) && action.stage > 0) return index(true, action.stage - 1, action.micro_batch);
  return std::nullopt;
}

std::size_t PipelineTransfers::carried_by(const PipelineAction& message) const {
  const bool is_gradient = message.kind == kSendBackward || message.kind == kReceiveBackward;
  const std::int64_t receiver = !is_send(message.kind) ? message.stage : message.stage + (is_gradient ? -1 : 1);
  return index(is_gradient, receiver, message.micro_batch);
}

bool PipelineTransfers::is_gradient(std::size_t transfer) const {
  return static_cast<std::int64_t>(transfer) >= stages_ * micro_batches_;
}

std::int64_t PipelineTransfers::receiving_stage(std::size_t transfer) const {
  return static_cast<std::int64_t>(transfer) / micro_batches_ % stages_;
}

std::int64_t PipelineTransfers::sending_stage(std::size_t transfer) const {
  return receiving_stage(transfer) + (is_gradient(transfer) ? 1 : -1);
}

std::int64_t PipelineTransfers::micro_batch(std::size_t transfer) const {
  return static_cast<std::int64_t>(transfer) % micro_batches_;
}

std::int64_t pipeline_duration(const PipelineStep& step) {
  std::int64_t duration = 0;
  for (const PipelineAction& action : step.actions) {
    if (is_compute(action.kind)) duration += action.kind == kBackward ? 2 : 1;
  }
  return duration;
}

PipelineRun::PipelineRun(const PipelineSchedule& schedule, const PipelineLists& lists,
                         const PipelineRunOptions& options)
    : schedule_(schedule),
      lists_(lists),
      options_(options),
      transfers_(schedule.stage_to_rank.size(), schedule.micro_batches),
      ranks_(lists.size()),
      state_(transfers_.size()) {
  bool moves = true;
  while (moves) {
    moves = false;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      while (advance(rank)) moves = true;
      while (options_.one_stream && pump(rank)) moves = true;
    }
  }
}

// One step of the rank's list, where it can run.
bool PipelineRun::advance(std::size_t index) {
  Rank& rank = ranks_[index];
  if (rank.at == lists_[index].size()) return false;
  const PipelineStep& step = lists_[index][rank.at];
  const bool runs = is_batch(step) ? pass(rank, step) : compute(rank, index, step);
  if (runs) ++rank.at;
  return runs;
}

bool PipelineRun::compute(Rank& rank, std::size_t index, const PipelineStep& step) {
  std::int64_t begin = rank.time;
  for (const PipelineAction& action : step.actions) {
    const auto needed = transfers_.needed_by(action);
    if (!needed) continue;
    const auto time = arrival(*needed, index);
    if (!time) return false;
    begin = std::max(begin, *time);
  }
  const std::int64_t duration = pipeline_duration(step);
  if (duration == 0) return true;
  rank.time = begin + duration;
  for (const PipelineAction& action : step.actions) {
    if (const auto made = transfers_.made_by(action)) state_[*made].made = rank.time;
  }
  return true;
}

// Posts the batch once; true when the rank may go on.
bool PipelineRun::pass(Rank& rank, const PipelineStep& step) {
  if (!rank.is_posted) {
    rank.is_posted = true;
    if (options_.one_stream) {
      rank.stream.push_back(rank.at);
      rank.post_time.push_back(rank.time);
    } else {
      start(step, rank.time);
    }
  }
  if (step.join == PipelineJoin::kWaited) {
    const auto end = end_of(step);
    if (!end) return false;
    rank.time = std::max(rank.time, *end);
  }
  rank.is_posted = false;
  return true;
}

// The next batch of the rank's stream starts or ends, where it can.
bool PipelineRun::pump(std::size_t index) {
  Rank& rank = ranks_[index];
  if (rank.stream_at == rank.stream.size()) return false;
  const PipelineStep& batch = lists_[index][rank.stream[rank.stream_at]];
  if (!rank.is_started) {
    rank.stream_time = std::max(rank.stream_time, rank.post_time[rank.stream_at]);
    start(batch, rank.stream_time);
    rank.is_started = true;
    return true;
  }
  const auto end = end_of(batch);
  if (!end) return false;
  rank.stream_time = std::max(rank.stream_time, *end);
  rank.is_started = false;
  ++rank.stream_at;
  return true;
}

void PipelineRun::start(const PipelineStep& batch, std::int64_t time) {
  for (const PipelineAction& message : batch.actions) {
    Transfer& transfer = state_[transfers_.carried_by(message)];
    (is_send(message.kind) ? transfer.sent : transfer.received) = time;
  }
}

std::optional<std::int64_t> PipelineRun::end_of(const PipelineStep& batch) const {
  std::int64_t end = 0;
  for (const PipelineAction& message : batch.actions) {
    const Transfer& transfer = state_[transfers_.carried_by(message)];
    if (!transfer.sent || !transfer.received) return std::nullopt;
    end = std::max({end, *transfer.sent, *transfer.received});
  }
  return end;
}

std::optional<std::int64_t> PipelineRun::arrival(std::size_t index, std::size_t rank) const {
  const Transfer& transfer = state_[index];
  if (!options_.has_messages || rank_of(transfers_.sending_stage(index)) == rank) return transfer.made;
  if (!transfer.sent || !transfer.received) return std::nullopt;
  return std::max(*transfer.sent, *transfer.received);
}

std::size_t PipelineRun::rank_of(std::int64_t stage) const {
  return static_cast<std::size_t>(schedule_.stage_to_rank[static_cast<std::size_t>(stage)]);
}

bool PipelineRun::is_finished() const {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].at < lists_[rank].size() || ranks_[rank].stream_at < ranks_[rank].stream.size()) return false;
  }
  return true;
}

std::int64_t PipelineRun::makespan() const { return std::ranges::max_element(ranks_, {}, &Rank::time)->time; }

// What the step at which the rank stands needs of a rank that has not run it.
PipelineAction PipelineRun::waits_for(std::size_t index) const {
  for (const PipelineAction& action : lists_[index][ranks_[index].at].actions) {
    if (is_message(action.kind)) {
      const std::size_t transfer = transfers_.carried_by(action);
      if (state_[transfer].sent && state_[transfer].received) continue;
      const bool gradient = transfers_.is_gradient(transfer);
      if (!is_send(action.kind)) {
        return {gradient ? kSendBackward : kSendForward, transfers_.sending_stage(transfer), action.micro_batch};
      }
      return {gradient ? kReceiveBackward : kReceiveForward, transfers_.receiving_stage(transfer), action.micro_batch};
    }
    const auto needed = transfers_.needed_by(action);
    if (!needed || arrival(*needed, index)) continue;
    const std::int64_t maker = transfers_.sending_stage(*needed);
    const bool gradient = transfers_.is_gradient(*needed);
    if (options_.has_messages && rank_of(maker) != index) {
      return {gradient ? kSendBackward : kSendForward, maker, action.micro_batch};
    }
    // The maker may be split or keep its input; its list says which.
    for (const PipelineStep& step : lists_[rank_of(maker)]) {
      for (const PipelineAction& made : step.actions) {
        if (transfers_.made_by(made) == needed && is_compute(made.kind)) return made;
      }
    }
  }
  return lists_[index][ranks_[index].at].actions[0];
}

std::string PipelineRun::cycle() const {
  const auto waits = [&](std::size_t rank) { return ranks_[rank].at < lists_[rank].size(); };
  std::size_t rank = 0;
  while (rank < ranks_.size() && !waits(rank)) ++rank;
  // Every rank that waits waits for one that waits, so that after as many steps as ranks the walk is on the cycle.
  const auto follow = [&](std::size_t from) { return rank_of(waits_for(from).stage); };
  for (std::size_t i = 0; i < ranks_.size(); ++i) rank = follow(rank);
  std::string text;
  std::size_t at = rank;
  do {
    const PipelineStep& front = lists_[at][ranks_[at].at];
    const PipelineAction needed = waits_for(at);
    const std::size_t next = rank_of(needed.stage);
    const PipelineStep& in_front = lists_[next][ranks_[next].at];
    text += fmt::format("{}rank {} stands at {}, which needs {}", text.empty() ? "" : "; ", at, to_text(front),
                        to_text(needed));
    const bool is_there = std::ranges::find(in_front.actions, needed) != in_front.actions.end();
    if (!is_there) text += fmt::format(", which rank {} has behind {}", next, to_text(in_front));
    at = next;
  } while (at != rank);
  return text;
}

}  // namespace loom::train
