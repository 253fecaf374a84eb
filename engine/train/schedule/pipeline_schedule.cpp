#include "engine/train/schedule/pipeline_schedule.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <string_view>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/train/schedule/pipeline_check.h"
#include "engine/train/schedule/pipeline_orders.h"

namespace loom::train {
namespace {

// More than any machine runs in a step, and little enough to hold.
constexpr std::int64_t kMostActions = std::int64_t{1} << 24;

struct Rule {
  std::string_view dialect;
  std::string_view schedule;
  std::int64_t least_stages;  // a rank
  std::int64_t most_stages;   // the same, or 0 for no limit
  std::int64_t least_ranks;
  std::vector<std::string_view> options;
  PipelineSchedule (*make)(const PipelineJob&);
};

const std::vector<Rule>& rules() {
  static const std::vector<Rule> all = {
      {"torch", "gpipe", 1, 1, 1, {}, torch_gpipe},
      {"torch", "1f1b", 1, 1, 1, {}, torch_1f1b},
      {"torch", "interleaved_1f1b", 1, 0, 1, {}, torch_interleaved_1f1b},
      {"torch", "interleaved_zero_bubble", 1, 0, 1, {}, torch_interleaved_zero_bubble},
      {"torch", "looped_bfs", 1, 0, 1, {}, torch_looped_bfs},
      {"torch", "zbv_zero_bubble", 2, 2, 1, {}, torch_zbv_zero_bubble},
      {"torch", "dualpipev", 2, 2, 1, {}, torch_dualpipev},
      {"megatron", "1f1b", 1, 1, 1, {}, megatron_1f1b},
      {"megatron",
       "interleaved_1f1b",
       2,
       0,
       2,
       {"group", "overlap_moe", "overlap_p2p", "overlap_p2p_warmup_flush"},
       megatron_interleaved_1f1b},
      {"mindspeed", "1f1b", 1, 1, 1, {}, megatron_1f1b},
      {"mindspeed",
       "interleaved_1f1b",
       2,
       0,
       2,
       {"recompute_in_bubble", "recompute_in_advance"},
       mindspeed_interleaved_1f1b},
      {"mindspeed", "nanopipe", 2, 0, 3, {}, mindspeed_nanopipe},
      {"mindspeed", "dualpipev", 2, 2, 2, {"dw_detach", "fb_overlap"}, mindspeed_dualpipev},
  };
  return all;
}

const Rule& rule_of(const PipelineJob& job) {
  std::vector<std::string_view> dialects, schedules;
  for (const Rule& rule : rules()) {
    if (std::ranges::find(dialects, rule.dialect) == dialects.end()) dialects.push_back(rule.dialect);
    if (rule.dialect != job.dialect) continue;
    if (rule.schedule == job.schedule) return rule;
    schedules.push_back(rule.schedule);
  }
  if (schedules.empty()) {
    config_error("dialect is '{}'; write one of {}", shown_text(job.dialect), fmt::join(dialects, ", "));
  }
  config_error("schedule is '{}', which dialect {} does not have; write one of {}", shown_text(job.schedule),
               job.dialect, fmt::join(schedules, ", "));
}

void check_counts(const PipelineJob& job) {
  for (const auto& [name, count] : {std::pair{"ranks", job.ranks},
                                    {"stages_per_rank", job.stages_per_rank},
                                    {"micro_batches", job.micro_batches}}) {
    if (count >= 1 && count <= kMostActions) continue;
    config_error("{} is {}, and a pipeline needs between 1 and {}", name, count, kMostActions);
  }
  // Each factor is at most 2^24, so that the first product does not overflow.
  const std::int64_t stages = job.ranks * job.stages_per_rank;
  if (stages > kMostActions / job.micro_batches) {
    config_error(
        "{} stages of {} micro-batches are more than the {} forwards that a pipeline's order may have; write "
        "fewer micro-batches",
        stages, job.micro_batches, kMostActions);
  }
}

std::vector<std::string_view> options_set(const PipelineOptions& options) {
  std::vector<std::string_view> names;
  if (options.group != 0) names.push_back("group");
  if (options.overlap_moe) names.push_back("overlap_moe");
  if (options.overlap_p2p) names.push_back("overlap_p2p");
  if (options.overlap_p2p_warmup_flush) names.push_back("overlap_p2p_warmup_flush");
  if (options.recompute_in_bubble) names.push_back("recompute_in_bubble");
  if (options.recompute_in_advance) names.push_back("recompute_in_advance");
  if (options.dw_detach) names.push_back("dw_detach");
  if (options.fb_overlap) names.push_back("fb_overlap");
  return names;
}

void check_options(const PipelineJob& job, const Rule& rule) {
  for (const std::string_view option : options_set(job.options)) {
    if (std::ranges::find(rule.options, option) != rule.options.end()) continue;
    config_error("{} is set, which {} of dialect {} does not read; its options are: {}", option, rule.schedule,
                 rule.dialect, rule.options.empty() ? "none" : fmt::format("{}", fmt::join(rule.options, ", ")));
  }
}

void check_stages(const PipelineJob& job, const Rule& rule) {
  if (job.stages_per_rank < rule.least_stages || (rule.most_stages != 0 && job.stages_per_rank > rule.most_stages)) {
    config_error("stages_per_rank is {}, and {} of dialect {} needs {}{}; write {}, or another schedule",
                 job.stages_per_rank, rule.schedule, rule.dialect, rule.least_stages,
                 rule.most_stages == 0 ? " or more" : "", rule.least_stages);
  }
  if (job.ranks < rule.least_ranks) {
    config_error("{} of dialect {} needs {} ranks or more, and there are {}; write {} ranks or more", rule.schedule,
                 rule.dialect, rule.least_ranks, job.ranks, rule.least_ranks);
  }
}

// By stage, the rank whose list computes it.
std::vector<std::int64_t> ranks_of_stages(const PipelineLists& order) {
  std::map<std::int64_t, std::size_t> rank_of_stage;
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    for (const PipelineStep& step : order[rank]) {
      for (const PipelineAction& action : step.actions) rank_of_stage.emplace(action.stage, rank);
    }
  }
  std::vector<std::int64_t> ranks;
  for (const auto& [stage, rank] : rank_of_stage) {
    if (std::cmp_not_equal(stage, ranks.size())) {
      config_error("the order of a pipeline has stage {} and no stage {}; number its stages from 0 on", stage,
                   ranks.size());
    }
    ranks.push_back(static_cast<std::int64_t>(rank));
  }
  return ranks;
}

}  // namespace

PipelineSchedule make_pipeline_schedule(const PipelineJob& job) {
  const Rule& rule = rule_of(job);
  check_counts(job);
  check_options(job, rule);
  check_stages(job, rule);
  return rule.make(job);
}

PipelineSchedule pipeline_schedule_from_order(PipelineLists order, std::int64_t micro_batches) {
  PipelineSchedule schedule{.micro_batches = micro_batches, .stage_to_rank = ranks_of_stages(order)};
  schedule.order = std::move(order);
  check_order(schedule);
  return schedule;
}

}  // namespace loom::train
