// PipelinePlan: the stages of a job's pipeline, and what each rank does in a step.
//
// Lists    with one stage a rank, parameters are gathered by the hooks of FSDP; with several, the list gathers a stage
//          before its first action (schedule/pipeline_lowering.h), as torch does.
// Errors   ConfigError: flags that do not fit together, the model's layers or the micro-batches.
// Threads  any.
#pragma once

#include <string>
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
  std::string schedule_name;    // torch's, or the user's file
  // Of the whole model:
  std::int64_t parameters = 0;
  bool has_experts = false;
};

PipelinePlan plan_pipeline(const PipelineParallel& options, std::int64_t layers, std::int64_t micro_batches);

// "embedding, layers 0 to 1"
std::string content_of(const sharding::StageLayout& stage);
// "1F1B over 2 ranks: stage 0 on rank 0, embedding, layers 0 to 1; ..."
std::string text_of(const PipelinePlan& plan);
// What each rank computes, gathers and sends in a step: a line a rank.
std::string actions_of(const PipelinePlan& plan);

}  // namespace loom::train
