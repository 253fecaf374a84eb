#include <fmt/format.h>

#include "engine/core/shown_path.h"
#include "engine/core/shown_text.h"
#include "engine/core/wrapped.h"
#include "engine/explain/explanation.h"
#include "engine/explain/hang.h"

namespace loom::explain {
namespace {

constexpr std::size_t kIndent = 4;

std::string line(const std::string& text) { return wrapped(text + "\n", kIndent); }

std::string group_text(const std::string& group) { return fmt::format("group '{}'", escaped(shown_path(group))); }

std::string pass_text(const ExplainedTrace& trace, std::int64_t pass) {
  const auto at = trace.batch_of(pass);
  if (!at) return fmt::format("pass {}", pass);
  return fmt::format("pass {} (step {}, micro-batch {}, if all passes are of training)", pass, at->step,
                     at->micro_batch);
}

std::string fault_text(const ExplainedTrace& trace, const TraceFault& fault) {
  if (fault.skipped) {
    return line(fmt::format("  suspect: rank {} skipped {} in {}, in {}: it went to {}; the order is that of {}",
                            fault.rank, group_text(fault.group), fault.phase, pass_text(trace, fault.pass),
                            escaped(fault.instead), fault.decided_by));
  }
  if (fault.phase == "optimizer") {
    return line(fmt::format("  suspect: rank {} stopped before {}, in the optimizer or the training loop", fault.rank,
                            pass_text(trace, fault.pass)));
  }
  return line(fmt::format("  suspect: rank {} stopped in {} {}, in {}; look at its log and its stack", fault.rank,
                          fault.inside ? "the " + fault.phase + " of" : fault.phase + " before",
                          group_text(fault.group), pass_text(trace, fault.pass)));
}

std::string place_text(const ExplainedTrace& trace) {
  const TracedRank& first = trace.finding.ranks.front();
  return line(fmt::format("  all ranks are at {} of {}, in {}, in {}: the trace says no more", first.event,
                          group_text(first.group), first.phase, pass_text(trace, first.pass)));
}

std::string last_lines(const ExplainedTrace& trace) {
  std::string text;
  for (const TracedRank& rank : trace.finding.ranks) {
    if (text.size() > 4096) return text + line("  and other ranks");
    text += line(
        fmt::format("  rank {}: last at {} of {}, in {}", rank.rank, rank.event, group_text(rank.group), rank.phase));
  }
  return text;
}

}  // namespace

std::optional<PassOfJob> ExplainedTrace::batch_of(std::int64_t pass) const {
  if (!micro_batches || *micro_batches < 1) return std::nullopt;
  return PassOfJob{.step = (pass - 1) / *micro_batches + 1, .micro_batch = (pass - 1) % *micro_batches};
}

std::string to_text(const ExplainedTrace& trace) {
  std::vector<std::int64_t> ranks;
  for (const TracedRank& rank : trace.finding.ranks) ranks.push_back(rank.rank);
  std::string text = line(fmt::format("trace of FSDP2, of rank{} {}", ranks.size() == 1 ? "" : "s", ranks_text(ranks)));
  if (trace.is_cut) {
    text += line("  the log begins within a pass, so that the passes of the ranks are not lined up");
    return text + last_lines(trace);
  }
  for (const TraceFault& fault : trace.finding.faults) text += fault_text(trace, fault);
  if (trace.finding.faults.empty()) text += place_text(trace);
  for (const std::string& group : trace.unplanned) {
    text += line(fmt::format("  {} is no group of the plan: check that the job is the run's", group_text(group)));
  }
  return text;
}

}  // namespace loom::explain
