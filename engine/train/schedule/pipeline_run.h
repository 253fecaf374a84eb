// PipelineRun: the lists of all ranks run in virtual time. Private to engine/train/schedule.
//
//   PipelineRun run(schedule, lists, {.has_messages = true});
//   run.is_finished() ? use(run.makespan()) : use(run.cycle());
//
// Rules    the lists are complete, and with messages each is sent and received once (pipeline_check.h).
// Time     F = C = I = W = R = 1, B = 2, two together 3; all else takes none. Two together start when both may start.
// Stream   with one_stream the batches of a rank also pass one after another: a batch starts when the one before it has
//          ended.
// Threads  a run belongs to one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/train/schedule/pipeline_schedule.h"

namespace loom::train {

struct PipelineRunOptions {
  bool has_messages = false;  // otherwise what an action makes is at once where it is needed
  bool one_stream = false;
};

// An index of what stages exchange: outputs (by the stage that receives) and gradients.
class PipelineTransfers {
 public:
  PipelineTransfers(std::size_t stages, std::int64_t micro_batches)
      : stages_(static_cast<std::int64_t>(stages)), micro_batches_(micro_batches) {}

  std::size_t size() const { return static_cast<std::size_t>(2 * stages_ * micro_batches_); }
  // What a compute action needs and makes, and what a message carries; nothing at the ends of the model.
  std::optional<std::size_t> needed_by(const PipelineAction& action) const;
  std::optional<std::size_t> made_by(const PipelineAction& action) const;
  std::size_t carried_by(const PipelineAction& message) const;

  bool is_gradient(std::size_t transfer) const;
  std::int64_t receiving_stage(std::size_t transfer) const;
  std::int64_t sending_stage(std::size_t transfer) const;
  std::int64_t micro_batch(std::size_t transfer) const;

 private:
  std::size_t index(bool is_gradient, std::int64_t receiving_stage, std::int64_t micro_batch) const;

  std::int64_t stages_;
  std::int64_t micro_batches_;
};

std::int64_t pipeline_duration(const PipelineStep& step);

class PipelineRun {
 public:
  PipelineRun(const PipelineSchedule& schedule, const PipelineLists& lists, const PipelineRunOptions& options);

  bool is_finished() const;
  std::int64_t makespan() const;
  // Of a run that is not finished and has several streams: the ranks that wait for each other, in words.
  std::string cycle() const;

 private:
  struct Rank {
    std::size_t at = 0;
    std::int64_t time = 0;
    bool is_posted = false;           // the waited batch at `at`
    std::vector<std::size_t> stream;  // batches, as posted
    std::vector<std::int64_t> post_time;
    std::size_t stream_at = 0;
    std::int64_t stream_time = 0;
    bool is_started = false;  // the batch at `stream_at`
  };
  struct Transfer {
    std::optional<std::int64_t> sent;
    std::optional<std::int64_t> received;
    std::optional<std::int64_t> made;
  };

  bool advance(std::size_t rank);
  bool pump(std::size_t rank);
  bool compute(Rank& rank, std::size_t index, const PipelineStep& step);
  bool pass(Rank& rank, const PipelineStep& step);
  void start(const PipelineStep& batch, std::int64_t time);
  std::optional<std::int64_t> end_of(const PipelineStep& batch) const;
  std::optional<std::int64_t> arrival(std::size_t transfer, std::size_t rank) const;
  std::size_t rank_of(std::int64_t stage) const;
  PipelineAction waits_for(std::size_t rank) const;

  const PipelineSchedule& schedule_;
  const PipelineLists& lists_;
  const PipelineRunOptions options_;
  const PipelineTransfers transfers_;
  std::vector<Rank> ranks_;
  std::vector<Transfer> state_;
};

}  // namespace loom::train
