#include "engine/train/pipeline/pipeline_plan.h"

#include <algorithm>
#include <cstdlib>
#include <fmt/ranges.h>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/core/error.h"
#include "engine/train/schedule/pipeline_csv.h"
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
  std::vector<std::string_view> names;
  for (const Named& one : kSchedules) names.push_back(one.name);
  config_error("--pipeline-parallel-schedule is {}; use {}", name, fmt::join(names, ", "));
}

template <class T>
std::optional<std::int64_t> given(T value) {
  return value > 0 ? std::optional<std::int64_t>(value) : std::nullopt;
}

std::vector<sharding::StageLayout> stages_of(const PipelineParallel& options, std::int64_t layers,
                                             std::optional<std::int64_t> chunks) {
  const std::int64_t ranks = options.pipeline_model_parallel_size;
  const std::optional<std::int64_t> per_stage = given(options.num_layers_per_virtual_pipeline_stage);
  if (!options.pipeline_model_parallel_layout.empty()) {
    return sharding::split_megatron_layout({.layers = layers,
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

// The user's order says how many stages there are, and on which ranks.
PipelineSchedule schedule_in(const std::filesystem::path& file, int ranks, std::int64_t micro_batches) {
  PipelineLists order = read_pipeline_csv(file);
  if (std::cmp_not_equal(order.size(), ranks)) {
    config_error("{}: the order is of {} ranks, and --pipeline-model-parallel-size is {}; give a row for each rank",
                 file.string(), order.size(), ranks);
  }
  for (const PipelineList& list : order) {
    for (const PipelineStep& step : list) {
      for (const PipelineAction& action : step.actions) {
        if (action.kind != PipelineKind::kForwardKeepingInput && action.kind != PipelineKind::kRecompute) continue;
        config_error(
            "{}: {} recomputes by the schedule, which is not trained; write F, and recompute_modules in "
            "fsdp2_config.yaml",
            file.string(), to_text(action));
      }
    }
  }
  return pipeline_schedule_from_order(std::move(order), micro_batches);
}

// A message goes to a neighbour in the ring of ranks.
void check_neighbours(const std::filesystem::path& file, const std::vector<std::int64_t>& stage_to_rank, int ranks) {
  for (std::size_t stage = 1; stage < stage_to_rank.size(); ++stage) {
    const std::int64_t apart = std::abs(stage_to_rank[stage] - stage_to_rank[stage - 1]);
    if (apart <= 1 || apart == ranks - 1) continue;
    config_error(
        "{}: stages {} and {} are on ranks {} and {}; neighbouring stages are on neighbouring ranks, or on one",
        file.string(), stage - 1, stage, stage_to_rank[stage - 1], stage_to_rank[stage]);
  }
}

PipelinePlan plan_of_file(const PipelineParallel& options, std::int64_t layers, std::int64_t micro_batches) {
  const std::filesystem::path& file = *options.pipeline_parallel_schedule_csv;
  const int ranks = options.pipeline_model_parallel_size;
  if (!options.pipeline_parallel_schedule.empty()) {
    config_error("--pipeline-parallel-schedule and --pipeline-parallel-schedule-csv are both given; keep one");
  }
  PipelinePlan plan;
  plan.schedule = schedule_in(file, ranks, micro_batches);
  plan.schedule_name = file.string();
  const std::vector<std::int64_t>& on = plan.schedule.stage_to_rank;
  check_neighbours(file, on, ranks);
  if (on.size() % static_cast<std::size_t>(ranks) != 0) {
    config_error("{}: {} stages over {} ranks; give each rank as many", file.string(), on.size(), ranks);
  }
  plan.stages = stages_of(options, layers, static_cast<std::int64_t>(on.size()) / ranks);
  std::vector<std::int64_t> chunks(static_cast<std::size_t>(ranks));
  for (sharding::StageLayout& stage : plan.stages) {
    stage.rank = on.at(static_cast<std::size_t>(stage.stage));
    stage.chunk = chunks.at(static_cast<std::size_t>(stage.rank))++;
  }
  plan.gathers_stages = on.size() > static_cast<std::size_t>(ranks);
  return plan;
}

PipelinePlan plan_of_name(const PipelineParallel& options, std::int64_t layers, std::int64_t micro_batches) {
  PipelinePlan plan;
  plan.stages = stages_of(options, layers, given(options.num_virtual_stages_per_pipeline_rank));
  const auto stages_per_rank = static_cast<std::int64_t>(plan.stages.size()) / options.pipeline_model_parallel_size;
  const Named& named = schedule_of(options, stages_per_rank > 1);
  if (named.has_one_stage && stages_per_rank > 1) {
    config_error(
        "--pipeline-parallel-schedule {} has one stage a rank, and the layers are cut into {} stages; use "
        "Interleaved1F1B",
        named.name, plan.stages.size());
  }
  // Torch refuses fewer micro-batches than ranks; Megatron runs them.
  plan.schedule = make_pipeline_schedule({.dialect = named.schedule == "1f1b" ? "megatron" : "torch",
                                          .schedule = std::string(named.schedule),
                                          .ranks = options.pipeline_model_parallel_size,
                                          .stages_per_rank = stages_per_rank,
                                          .micro_batches = micro_batches});
  plan.gathers_stages = !named.has_one_stage;
  plan.schedule_name = named.name;
  return plan;
}

}  // namespace

std::string content_of(const sharding::StageLayout& stage) {
  std::vector<std::string> parts;
  if (stage.embedding) parts.emplace_back("embedding");
  if (stage.layers.size() == 1) parts.push_back(fmt::format("layer {}", stage.layers.front()));
  if (stage.layers.size() > 1)
    parts.push_back(fmt::format("layers {} to {}", stage.layers.front(), stage.layers.back()));
  if (stage.loss) parts.emplace_back("output");
  return parts.empty() ? "nothing" : fmt::format("{}", fmt::join(parts, ", "));
}

std::string text_of(const PipelinePlan& plan) {
  std::vector<std::string> stages;
  for (const sharding::StageLayout& stage : plan.stages) {
    stages.push_back(fmt::format("stage {} on rank {}: {}", stage.stage, stage.rank, content_of(stage)));
  }
  return fmt::format("pipeline {} over {} ranks; {}", plan.schedule_name, plan.lists.size(), fmt::join(stages, "; "));
}

std::string actions_of(const PipelinePlan& plan) {
  std::string text;
  for (std::size_t rank = 0; rank < plan.lists.size(); ++rank) {
    text += fmt::format("rank {} of the pipeline: {}\n", rank, to_text(plan.lists[rank]));
  }
  return text;
}

PipelinePlan plan_pipeline(const PipelineParallel& options, std::int64_t layers, std::int64_t micro_batches) {
  PipelinePlan plan = options.pipeline_parallel_schedule_csv ? plan_of_file(options, layers, micro_batches)
                                                             : plan_of_name(options, layers, micro_batches);
  plan.lists = lower_pipeline(plan.schedule);
  return plan;
}

}  // namespace loom::train
