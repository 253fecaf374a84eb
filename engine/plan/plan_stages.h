// The ranks of a planned pipeline: what each holds, needs and waits for.
//
// Ranks     one for each place in the pipeline: the first of those that have the same stages. Their steps are planned
//           whole, and resolved together.
// Bubble    the compute stream waits for a message that has not been sent yet, or the rank is done and others are not.
//           While a message that it waits for is on its way, that is exposed communication of the axis "pp".
// Inflight  micro-batches of a stage whose forward ran and whose backward did not, at most: what is kept of
//           activations.
// Threads   any.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/train/pipeline/pipeline_plan.h"
#include "engine/virtual_time/resolve.h"

namespace loom::device {
struct Entry;
struct Recording;
}  // namespace loom::device
namespace loom::train {
struct PipelineFigures;
}

namespace loom::plan {

struct StageEstimate {
  int rank = 0;                 // in the world
  std::string content;          // "stage 0: embedding, layers 0 to 3"
  std::int64_t parameters = 0;  // that it holds, before they are sharded
  std::int64_t peak_allocated_bytes = 0;
  std::int64_t peak_reserved_bytes = 0;
  std::int64_t in_flight = 0;
  std::int64_t compute_ns = 0;
  std::int64_t bubble_ns = 0;
  std::int64_t exposed_message_ns = 0;
};

struct PipelineEstimate {
  std::string schedule;  // by torch's name, or the user's file
  std::vector<StageEstimate> ranks = {};
  // Of the time of all ranks, the share that is bubble.
  double bubble = 0;
};

// Whether an entry sends or receives for a stage.
bool is_message(const device::Entry& entry);

// The time of a rank in a step of all ranks.
void measure_time(StageEstimate& stage, const device::Recording& recording, const virtual_time::RankTimes& times,
                  std::int64_t step_ns);
// The stages of a rank of the pipeline, and how many micro-batches it has in flight. `figures`: of the plan's schedule.
StageEstimate describe_rank(const train::PipelinePlan& plan, const train::PipelineFigures& figures, std::int64_t place);
// Once all ranks are measured.
void add_up(PipelineEstimate& pipeline, std::int64_t step_ns);

// A table, a line a rank.
std::string to_text(const PipelineEstimate& pipeline, std::int64_t step_ns);
nlohmann::ordered_json to_json(const PipelineEstimate& pipeline);

}  // namespace loom::plan
