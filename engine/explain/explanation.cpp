#include "engine/explain/explanation.h"

#include <algorithm>
#include <functional>

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

std::optional<ExplainedTrace> trace_of(const FsdpTrace& trace) {
  auto finding = finding_of(trace);
  if (!finding) return std::nullopt;
  return ExplainedTrace{.finding = std::move(*finding), .is_cut = trace.is_cut(), .micro_batches = {}, .unplanned = {}};
}

// Of the rank that ran out of memory; none: the trace does not have it.
std::optional<TracedEnd> traced_end(const Explanation& explanation) {
  const auto& rank = explanation.memory->report.speaker.rank;
  if (!explanation.trace || !rank) return std::nullopt;
  const auto& ranks = explanation.trace->finding.ranks;
  const auto found = std::ranges::find(ranks, *rank, &TracedRank::rank);
  if (found == ranks.end()) return std::nullopt;
  return TracedEnd{*found, explanation.trace->is_cut ? std::nullopt : explanation.trace->batch_of(found->pass)};
}

void place_memory(Explanation& explanation, const JobOfRun& job) {
  if (!explanation.memory) return;
  const auto end = traced_end(explanation);
  explanation.memory->place = place_of(explanation.memory->report, job, end ? &*end : nullptr);
}

std::int64_t micro_batches_of(const std::vector<CollectiveOrder>& orders) {
  std::int64_t count = 1;
  for (const CollectiveOrder& order : orders) {
    for (const PlannedCollective& planned : order.step) count = std::max(count, planned.micro_batch + 1);
  }
  return count;
}

bool has_group(const std::vector<CollectiveOrder>& orders, const std::string& group) {
  return std::ranges::any_of(orders, [&](const CollectiveOrder& order) {
    return std::ranges::any_of(order.step,
                               [&](const PlannedCollective& one) { return one.of_group && one.subject == group; });
  });
}

void place_trace(ExplainedTrace& trace, const std::vector<CollectiveOrder>& orders) {
  trace.micro_batches = micro_batches_of(orders);
  for (const TraceFault& fault : trace.finding.faults) {
    if (fault.phase == "optimizer" || has_group(orders, fault.group)) continue;
    if (std::ranges::find(trace.unplanned, fault.group) == trace.unplanned.end())
      trace.unplanned.push_back(fault.group);
  }
}

// Where the trace leaves a rank that waits for the collective. The ranks of gloo's texts are those of the world if
// there is one process group, as in runs that shard over all ranks.
std::optional<WaitedPlace> waited_in(const Hang& hang, const ExplainedTrace& trace) {
  if (hang.first_seq != 0 || trace.is_cut) return std::nullopt;
  for (const RankState& rank : hang.ranks) {
    const auto seen = rank.seen.find(hang.waited);
    if (seen == rank.seen.end() || seen->second != hang.collective) continue;
    const auto last = std::ranges::find(trace.finding.ranks, rank.rank, &TracedRank::rank);
    if (last == trace.finding.ranks.end()) continue;
    const auto at = trace.batch_of(last->pass);
    if (at) return WaitedPlace{last->phase == "recompute" ? "backward" : last->phase, at->micro_batch};
  }
  return std::nullopt;
}

// Sizes leave several candidates for what a rank skipped; the trace names it, and what does not agree is dropped.
void narrow(HangPlace& place, const ExplainedTrace& trace) {
  for (OutOfOrder& found : place.out_of_order) {
    for (const TraceFault& fault : trace.finding.faults) {
      if (!fault.skipped || fault.rank != found.other.rank) continue;
      const auto is_it = [&](const PlannedCollective& one) {
        return one.subject == fault.group && one.phase == fault.phase;
      };
      // Without it among the candidates, collectives of the training loop have shifted the places.
      if (std::ranges::none_of(found.skipped, is_it)) found.several = true;
      std::erase_if(found.skipped, std::not_fn(is_it));
    }
  }
}

void place_hangs(Explanation& explanation, const JobOfRun& job) {
  if (explanation.hangs.empty() && !explanation.trace) return;
  const plan::StepEstimate plan =
      plan::estimate_step(job.arguments, job.callbacks, job.profile, plan::Capacity::kLifted);
  const auto orders = collective_orders(run_of(plan, first_rank(explanation.texts)).recording);
  if (explanation.trace) place_trace(*explanation.trace, orders);
  for (ExplainedHang& hang : explanation.hangs) {
    const auto waited = explanation.trace ? waited_in(hang.hang, *explanation.trace) : std::nullopt;
    hang.place = place_of(hang.hang, orders, waited ? &*waited : nullptr);
    if (hang.place && explanation.trace) narrow(*hang.place, *explanation.trace);
  }
}

}  // namespace

Explanation explain(std::string source, LogTexts texts, const JobOfRun* job) {
  Explanation explanation{.source = std::move(source),
                          .texts = std::move(texts),
                          .has_job = job != nullptr,
                          .memory = {},
                          .notes = {},
                          .hangs = {},
                          .trace = {}};
  explanation.memory = memory_of(explanation.texts);
  explanation.trace = trace_of(explanation.texts.trace);
  if (explanation.texts.trace.overflowed()) {
    explanation.notes.emplace_back(
        "the trace of FSDP2 is too large to be kept, and is left out; give the log's last steps");
  }
  for (Hang& hang : hangs_of(explanation.texts)) explanation.hangs.push_back({std::move(hang), std::nullopt});
  if (job == nullptr) return explanation;
  place_hangs(explanation, *job);
  place_memory(explanation, *job);
  return explanation;
}

bool is_understood(const LogTexts& texts) {
  if (!texts.reports.empty()) return true;
  const auto finding = finding_of(texts.trace);
  return finding && !finding->faults.empty();
}

std::string_view understood_texts() {
  return "out of memory of PyTorch (CUDA, HIP, the host) and torch_npu, timeouts and states of the NCCL watchdog "
         "(ProcessGroupNCCL), errors of gloo and of TORCH_DISTRIBUTED_DEBUG=DETAIL, errors of HCCL (EI0002, EI0006 and "
         "others, ERR codes of torch_npu), traces of FSDP2 (TORCH_LOGS=+fsdp)";
}

}  // namespace loom::explain
