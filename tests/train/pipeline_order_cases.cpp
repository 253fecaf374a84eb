#include "tests/train/pipeline_order_cases.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/error.h"
#include "engine/train/schedule/pipeline_check.h"
#include "engine/train/schedule/pipeline_lowering.h"
#include "engine/train/schedule/pipeline_schedule.h"
#include "engine/train/schedule/pipeline_time.h"
#include "tests/support/case_json.h"

namespace loom {
namespace {

using nlohmann::json;
using test::CaseJson;
using train::PipelineLists;
using train::PipelineSchedule;

constexpr double kFraction = 1e-6;

[[noreturn]] void differs(const std::string& text) { throw std::runtime_error(text); }

train::PipelineJob job_of(const CaseJson& file) {
  const CaseJson options = file.at("options");
  return {.dialect = file.at("dialect"),
          .schedule = file.at("schedule"),
          .ranks = file.at("ranks"),
          .stages_per_rank = file.at("stages_per_rank"),
          .micro_batches = file.at("micro_batches"),
          .options = {.group = options.value<std::int64_t>("group", 0),
                      .overlap_moe = options.value("overlap_moe", false),
                      .overlap_p2p = options.value("overlap_p2p", false),
                      .overlap_p2p_warmup_flush = options.value("overlap_p2p_warmup_flush", false),
                      .recompute_in_bubble = options.value("recompute_in_bubble", false),
                      .recompute_in_advance = options.value("recompute_in_advance", false),
                      .dw_detach = options.value("dw_detach", false),
                      .fb_overlap = options.value("fb_overlap", false)}};
}

PipelineLists lists_of(const CaseJson& lines) {
  PipelineLists lists;
  for (const CaseJson& line : lines.elements()) lists.push_back(train::parse_pipeline_list(line.get<std::string>()));
  return lists;
}

// --- comparisons: each throws for the first difference ---

// The tokens of a list; RESHARDs next to one another in a fixed order, because they are a set.
std::vector<std::string> tokens_of(const train::PipelineList& list) {
  std::vector<std::string> tokens;
  for (const train::PipelineStep& step : list) tokens.push_back(to_text(step));
  const auto frees = [](const std::string& token) { return token.ends_with("RESHARD"); };
  for (auto at = tokens.begin(); at != tokens.end();) {
    const auto end = std::find_if_not(at, tokens.end(), frees);
    std::sort(at, end);
    at = end == tokens.end() ? end : end + 1;
  }
  return tokens;
}

void compare_lists(const std::string& what, const PipelineLists& actual, const PipelineLists& right) {
  if (actual.size() != right.size()) differs(fmt::format("{} has {} lists, not {}", what, actual.size(), right.size()));
  for (std::size_t rank = 0; rank < right.size(); ++rank) {
    const std::vector<std::string> ours = tokens_of(actual[rank]), theirs = tokens_of(right[rank]);
    for (std::size_t i = 0; i < std::max(ours.size(), theirs.size()); ++i) {
      const std::string own = i < ours.size() ? ours[i] : "nothing", other = i < theirs.size() ? theirs[i] : "nothing";
      if (own != other) differs(fmt::format("{} of rank {}: token {} is {}, not {}", what, rank, i, own, other));
    }
  }
}

void compare_numbers(const std::string& what, const std::vector<std::int64_t>& actual,
                     const std::vector<std::int64_t>& right) {
  if (actual != right) {
    differs(fmt::format("{} is {}, not {}", what, fmt::join(actual, " "), fmt::join(right, " ")));
  }
}

std::vector<std::int64_t> numbers_in(const std::string& line) {
  std::istringstream stream(line);
  return {std::istream_iterator<std::int64_t>(stream), {}};
}

// Integers are equal, fractions within 1e-6. What `actual` lacks stays unread and fails the case.
void compare_figures(const std::string& what, const json& actual, const CaseJson& right) {
  for (const auto& [key, value] : right.items()) {
    const auto found = actual.find(key);
    if (found == actual.end()) continue;
    const json& expected = value.raw();
    const bool agrees = found->is_number_float() ? std::abs(found->get<double>() - expected.get<double>()) <= kFraction
                                                 : *found == expected;
    if (!agrees) differs(fmt::format("{} {} is {}, not {}", what, key, found->dump(), expected.dump()));
  }
}

json as_json(const train::PipelineFigures& figures) {
  return {{"makespan", figures.makespan},
          {"busy", figures.busy},
          {"bubble", figures.bubble},
          {"peak_activations", figures.peak_activations},
          {"peak_until_input_gradient", figures.peak_until_input_gradient},
          {"peak_weight_gradients_waiting", figures.peak_weight_gradients_waiting}};
}

json as_json(const train::PipelineListFigures& figures) {
  return {{"unshards", figures.unshards},
          {"peak_unsharded_stages", figures.peak_unsharded_stages},
          {"first_in_first_out", figures.first_in_first_out},
          {"makespan_waiting", figures.makespan_waiting},
          {"runs_on_one_stream", figures.runs_on_one_stream}};
}

// --- a case ---

PipelineLists compute_alone(const PipelineLists& lists) {
  PipelineLists compute(lists.size());
  for (std::size_t rank = 0; rank < lists.size(); ++rank) {
    std::ranges::copy_if(lists[rank], std::back_inserter(compute[rank]),
                         [](const train::PipelineStep& step) { return train::is_compute(step.actions[0].kind); });
  }
  return compute;
}

void compare_tables(const CaseJson& file, const PipelineSchedule& schedule) {
  compare_numbers("stage_to_rank", schedule.stage_to_rank, file.at("stage_to_rank"));
  if (file.contains("warmup")) compare_numbers("warmup", schedule.warmup, file.at("warmup"));
  if (file.contains("table_micro_batch")) {
    compare_numbers("table_micro_batch", schedule.table_micro_batch, numbers_in(file.at("table_micro_batch")));
  }
  if (file.contains("table_chunk")) {
    compare_numbers("table_chunk", schedule.table_chunk, numbers_in(file.at("table_chunk")));
  }
  if (!file.contains("graph_order")) return;
  const std::vector<CaseJson> lines = file.at("graph_order").elements();
  if (lines.size() != schedule.graph_order.size()) differs("graph_order has another number of ranks");
  for (std::size_t rank = 0; rank < lines.size(); ++rank) {
    compare_numbers(fmt::format("graph_order of rank {}", rank), schedule.graph_order[rank],
                    numbers_in(lines[rank].get<std::string>()));
  }
}

// Compares all that the file has; what it was, in words.
std::string compare(const CaseJson& file, const PipelineSchedule& schedule) {
  compare_lists("order", schedule.order, lists_of(file.at("order")));
  compare_tables(file, schedule);
  const train::PipelineFigures figures = pipeline_figures(schedule);
  const CaseJson expect = file.at("expect");
  compare_figures("expect", as_json(figures), expect);
  std::string text = fmt::format("makespan {}, bubble {:.6f}", figures.makespan, figures.bubble);
  if (file.contains("lowered")) {
    const PipelineLists lowered = lower_pipeline(schedule);
    compare_lists("lowered", lowered, lists_of(file.at("lowered")));
    compare_figures("lowered", as_json(pipeline_list_figures(schedule, lowered)), expect.at("lowered"));
    text += ", lowered";
  }
  if (file.contains("calls")) {
    const PipelineLists calls = lists_of(file.at("calls"));
    compare_lists("calls", compute_alone(calls), schedule.order);
    const train::PipelineListFigures waiting = pipeline_list_figures(schedule, calls);
    compare_figures("calls", as_json(waiting), expect.at("calls"));
    text += fmt::format(", calls take {}", waiting.makespan_waiting);
  }
  return text;
}

// What the engine says of a job or an order that it refuses.
template <class Body>
std::string refusal_of(Body&& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  differs("it is accepted, and the reference refuses it");
}

std::string compare_refusal(const CaseJson& file, const train::PipelineJob& job) {
  file.at("refused").raw();  // the original's words
  if (job.schedule != "file") return refusal_of([&] { make_pipeline_schedule(job); });
  const PipelineSchedule schedule{.micro_batches = job.micro_batches,
                                  .stage_to_rank = file.at("stage_to_rank"),
                                  .order = lists_of(file.at("order"))};
  if (std::cmp_not_equal(schedule.order.size(), job.ranks) ||
      std::cmp_not_equal(schedule.stage_to_rank.size(), job.ranks * job.stages_per_rank)) {
    differs("its order has another number of ranks or stages than it says");
  }
  const std::string text = refusal_of([&] { check_order(schedule); });
  refusal_of([&] { train::pipeline_schedule_from_order(schedule.order, job.micro_batches); });
  if (!file.contains("cycle")) return text;
  for (const CaseJson& action : file.at("cycle").elements()) {
    const std::string named = fmt::format(" {}", action.get<std::string>());
    if (text.find(named) == std::string::npos) differs(fmt::format("the sentence does not name{}: {}", named, text));
  }
  return text;
}

void run_case(const std::filesystem::path& path, test::ParityReport& report) {
  const std::string name = path.stem().string();
  try {
    const CaseJson file = test::read_case(path);
    const train::PipelineJob job = job_of(file);
    const std::string text =
        file.contains("refused") ? "refused: " + compare_refusal(file, job)
        : job.schedule == "file"
            ? compare(file, train::pipeline_schedule_from_order(lists_of(file.at("order")), job.micro_batches))
            : compare(file, make_pipeline_schedule(job));
    file.check_all_read({"made_by"});
    report.passed(name, text);
  } catch (const std::exception& error) {
    report.failed(name, error.what());
  }
}

}  // namespace

void run_pipeline_orders(const std::filesystem::path& folder, test::ParityReport& report) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  for (const std::filesystem::path& file : files) run_case(file, report);
}

}  // namespace loom
