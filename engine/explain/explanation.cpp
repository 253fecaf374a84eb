#include "engine/explain/explanation.h"

#include <algorithm>

namespace loom::explain {
namespace {

// Of the place of a pipeline with this rank; the first where there is no pipeline.
const plan::PlannedRun& run_of(const plan::StepEstimate& plan, std::int64_t rank) {
  const plan::PlannedRun* found = &plan.runs.front();
  for (const plan::PlannedRun& run : plan.runs) {
    if (run.rank <= rank && run.rank >= found->rank) found = &run;
  }
  return *found;
}

// The rank of the world that first reports.
std::int64_t first_rank(const LogTexts& texts) {
  for (const ErrorReport& report : texts.reports) {
    if (report.speaker.rank) return *report.speaker.rank;
  }
  return 0;
}

std::optional<ExplainedMemory> memory_of(const LogTexts& texts) {
  std::optional<ExplainedMemory> memory;
  for (const ErrorReport& report : texts.reports) {
    if (!std::holds_alternative<OutOfMemory>(report.what)) continue;
    if (!memory) memory = ExplainedMemory{.report = report, .ranks = {}, .texts = 0, .place = {}};
    ++memory->texts;
    if (report.speaker.rank) memory->ranks.push_back(*report.speaker.rank);
  }
  if (!memory) return std::nullopt;
  std::ranges::sort(memory->ranks);
  memory->ranks.erase(std::unique(memory->ranks.begin(), memory->ranks.end()), memory->ranks.end());
  return memory;
}

void place_memory(Explanation& explanation, const JobOfRun& job) {
  if (!explanation.memory) return;
  if (job.arguments.parallel.pipeline.pipeline_model_parallel_size > 1) {
    explanation.notes.emplace_back(
        "the place of an out of memory in a pipeline is not known; the plan of the job "
        "shows the memory of each stage");
    return;
  }
  explanation.memory->place = place_of(std::get<OutOfMemory>(explanation.memory->report.what), job);
}

void place_hangs(Explanation& explanation, const JobOfRun& job) {
  if (explanation.hangs.empty()) return;
  const plan::StepEstimate plan =
      plan::estimate_step(job.arguments, job.callbacks, job.profile, plan::Capacity::kLifted);
  const auto orders = collective_orders(run_of(plan, first_rank(explanation.texts)).recording);
  for (ExplainedHang& hang : explanation.hangs) hang.place = place_of(hang.hang, orders);
}

}  // namespace

Explanation explain(std::string source, LogTexts texts, const JobOfRun* job) {
  Explanation explanation{.source = std::move(source),
                          .texts = std::move(texts),
                          .has_job = job != nullptr,
                          .memory = {},
                          .notes = {},
                          .hangs = {}};
  explanation.memory = memory_of(explanation.texts);
  for (Hang& hang : hangs_of(explanation.texts)) explanation.hangs.push_back({std::move(hang), std::nullopt});
  if (job == nullptr) return explanation;
  place_memory(explanation, *job);
  place_hangs(explanation, *job);
  return explanation;
}

std::string_view understood_texts() {
  return "out of memory of PyTorch (CUDA, HIP) and torch_npu, timeouts and states of the NCCL watchdog "
         "(ProcessGroupNCCL), errors of HCCL (EI0002, EI0006 and others, ERR codes of torch_npu)";
}

}  // namespace loom::explain
