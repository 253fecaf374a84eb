#include "engine/train/pipeline/pipeline_plan.h"

#include <algorithm>
#include <fmt/ranges.h>
#include <optional>
#include <string_view>

#include "engine/core/error.h"
#include "engine/train/schedule/pipeline_lowering.h"
#include "sharding/pipeline/split.h"

namespace loom::train {
namespace {

struct Named {
  std::string_view name;      // torch's
  std::string_view schedule;  // pipeline_schedule.h's
  bool has_one_stage = false;
  bool is_v = false;
};
constexpr Named kSchedules[] = {{.name = "1F1B", .schedule = "1f1b", .has_one_stage = true},
                                {.name = "GPipe", .schedule = "gpipe", .has_one_stage = true},
                                {.name = "Interleaved1F1B", .schedule = "interleaved_1f1b"},
                                {.name = "InterleavedZeroBubble", .schedule = "interleaved_zero_bubble"},
                                {.name = "LoopedBFS", .schedule = "looped_bfs"},
                                {.name = "ZBVZeroBubble", .schedule = "zbv_zero_bubble", .is_v = true},
                                {.name = "DualPipeV", .schedule = "dualpipev", .is_v = true}};

const Named& schedule_of(const PipelineParallel& options, bool has_several_stages) {
  std::string_view name = options.pipeline_parallel_schedule;
  if (name.empty()) name = has_several_stages ? "Interleaved1F1B" : "1F1B";
  const auto found = std::ranges::find(kSchedules, name, &Named::name);
  if (found != std::end(kSchedules)) return *found;
  config_error("--pipeline-parallel-schedule is {}; use {}", name, fmt::join(pipeline_schedule_names(), ", "));
}

template <class T>
std::optional<std::int64_t> given(T value) {
  return value > 0 ? std::optional<std::int64_t>(value) : std::nullopt;
}

std::vector<sharding::StageLayout> stages_of(const PipelineParallel& options, std::int64_t layers) {
  const std::int64_t ranks = options.pipeline_model_parallel_size;
  std::optional<std::int64_t> chunks = given(options.num_virtual_stages_per_pipeline_rank);
  const std::optional<std::int64_t> per_stage = given(options.num_layers_per_virtual_pipeline_stage);
  if (!options.pipeline_model_parallel_layout.empty()) {
    return sharding::split_megatron_layout(
        {.layers = layers,
         .ranks = ranks,
         .chunks = chunks,
         .pipeline_model_parallel_layout = options.pipeline_model_parallel_layout});
  }
  if (schedule_of(options, false).is_v) {
    return sharding::split_mindspeed({.layers = layers, .ranks = ranks, .chunks = 2, .schedules_method = "dualpipev"});
  }
  if (!options.num_layer_list.empty()) {
    return sharding::split_mindspeed(
        {.layers = layers, .ranks = ranks, .chunks = chunks, .num_layer_list = options.num_layer_list});
  }
  return sharding::split_megatron(
      {.layers = layers,
       .ranks = ranks,
       .chunks = chunks,
       .num_layers_per_virtual_pipeline_stage = per_stage,
       .num_layers_in_first_pipeline_stage = given(options.decoder_first_pipeline_num_layers),
       .num_layers_in_last_pipeline_stage = given(options.decoder_last_pipeline_num_layers)});
}

}  // namespace

std::vector<std::string> pipeline_schedule_names() {
  std::vector<std::string> names;
  for (const Named& one : kSchedules) names.emplace_back(one.name);
  return names;
}

PipelinePlan plan_pipeline(const PipelineParallel& options, std::int64_t layers, std::int64_t micro_batches) {
  PipelinePlan plan;
  plan.stages = stages_of(options, layers);
  const auto stages_per_rank =
      static_cast<std::int64_t>(plan.stages.size()) / options.pipeline_model_parallel_size;
  const Named& named = schedule_of(options, stages_per_rank > 1);
  if (named.has_one_stage && stages_per_rank > 1) {
    config_error("--pipeline-parallel-schedule {} has one stage a rank, and the layers are cut into {} stages; use "
                 "Interleaved1F1B",
                 named.name, plan.stages.size());
  }
  // Torch refuses fewer micro-batches than ranks; Megatron runs them.
  plan.schedule = make_pipeline_schedule({.dialect = named.schedule == "1f1b" ? "megatron" : "torch",
                                          .schedule = std::string(named.schedule),
                                          .ranks = options.pipeline_model_parallel_size,
                                          .stages_per_rank = stages_per_rank,
                                          .micro_batches = micro_batches});
  plan.lists = lower_pipeline(plan.schedule);
  plan.gathers_stages = !named.has_one_stage;
  return plan;
}

}  // namespace loom::train
