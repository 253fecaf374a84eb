// PipelinePlan: the stages of a job's pipeline, and what each rank does in a step.
//
// Lists    with one stage a rank, parameters are gathered by the hooks of FSDP; with several, the list gathers a stage
//          before its first action (schedule/pipeline_lowering.h), as torch does.
// Errors   ConfigError: flags that do not fit together, the model's layers or the micro-batches.
// Threads  any.
#pragma once

#include <vector>

#include "engine/train/pipeline/options.h"
#include "engine/train/schedule/pipeline_schedule.h"
#include "sharding/pipeline/stage_layout.h"

namespace loom::train {

struct PipelinePlan {
  std::vector<sharding::StageLayout> stages;
  PipelineSchedule schedule;
  PipelineLists lists;          // by rank of the pipeline
  bool gathers_stages = false;  // by the list
};

PipelinePlan plan_pipeline(const PipelineParallel& options, std::int64_t layers, std::int64_t micro_batches);

}  // namespace loom::train
