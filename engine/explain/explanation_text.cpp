#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <set>

#include "engine/core/shown_text.h"
#include "engine/core/units.h"
#include "engine/core/wrapped.h"
#include "engine/explain/explanation.h"

namespace loom::explain {
namespace {

constexpr std::size_t kIndent = 4;
constexpr std::size_t kMostNamed = 12;  // collectives, in one sentence

std::string line(const std::string& text) { return wrapped(text + "\n", kIndent); }

std::string ranks_of(const std::vector<std::int64_t>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", ranks_text(ranks));
}

std::string collective_text(const SeenCollective& seen) {
  std::string text = escaped(seen.op);
  if (seen.numel_in) text += fmt::format(" of {} elements in", *seen.numel_in);
  if (seen.numel_out) text += fmt::format(", {} out", *seen.numel_out);
  return text;
}

std::string of_which(const std::vector<PlannedCollective>& candidates) {
  std::vector<std::string> names;
  for (const PlannedCollective& planned : candidates) {
    if (names.size() < kMostNamed) names.push_back(to_text(planned));
  }
  std::string text = fmt::format("{}", fmt::join(names, "; "));
  if (candidates.size() > kMostNamed) text += fmt::format("; and {} more", candidates.size() - kMostNamed);
  return text;
}

std::string head_of(const Hang& hang) {
  std::string text = hang.group.empty() ? "process group" : fmt::format("process group {}", escaped(hang.group));
  if (hang.waited < 0) return text + ": the barrier before a collective failed, whose number no text has";
  text += fmt::format(": collective {} was not completed", hang.waited);
  if (hang.timeout_ms > 0) text += fmt::format(" in {}", time_text(hang.timeout_ms * 1'000'000));
  if (hang.collective) text += ": " + collective_text(*hang.collective);
  return text;
}

std::string suspects_of(const Hang& hang) {
  std::string text;
  std::vector<std::int64_t> reporting;
  for (const RankState& rank : hang.ranks) reporting.push_back(rank.rank);
  text += line(fmt::format("  {} report{} it{}", ranks_of(reporting), reporting.size() == 1 ? "s" : "",
                           hang.size ? fmt::format(", of {} in the group", *hang.size) : ""));
  if (!hang.silent.empty()) {
    text +=
        line(fmt::format("  suspects: {}, without any report: the process ended, or its host never issued the "
                         "collective; look at the log and the stack of {}",
                         ranks_of(hang.silent), hang.silent.size() == 1 ? "it" : "these"));
  }
  if (!hang.behind.empty()) {
    text += line(fmt::format("  suspects: {}, {}", ranks_of(hang.behind),
                             hang.first_seq == 0 ? "which did not reach the barrier before the collective"
                                                 : "with the lowest last completed collective"));
  }
  for (const OtherCollective& other : hang.others) {
    text += line(fmt::format("  suspect: rank {} issued another collective as number {}: {}, most ranks {}", other.rank,
                             other.seq, collective_text(other.own), collective_text(other.most)));
  }
  const bool all_report = hang.size && std::ssize(hang.ranks) == *hang.size;
  if (all_report && hang.behind.empty() && hang.others.empty()) {
    text += line(
        "  all ranks issued the same collective and completed the one before: the links or a device stopped, "
        "not the program");
  }
  return text;
}

std::string out_of_order_text(const OutOfOrder& found) {
  const std::int64_t rank = found.other.rank;
  if (!found.issued) {
    return line(fmt::format("  rank {}: {} is no collective of the planned step on this group", rank,
                            collective_text(found.other.own)));
  }
  const std::int64_t count = std::abs(found.ahead);
  const std::string distance =
      fmt::format("{} collective{} {}", count, count == 1 ? "" : "s", found.ahead > 0 ? "ahead" : "behind");
  if (found.several) {
    return line(fmt::format(
        "  rank {} is out of order: {} at one of several places, which sizes do not tell apart{}", rank, distance,
        found.ahead > 0 && !found.skipped.empty() ? "; it skipped one of these: " + of_which(found.skipped) : ""));
  }
  std::string text =
      line(fmt::format("  rank {} is out of order: it issued the {}, {}", rank, to_text(*found.issued), distance));
  if (found.ahead > 0) {
    text += line(fmt::format("    it skipped {}{}",
                             std::ssize(found.skipped) > found.ahead
                                 ? fmt::format("{} of these, which sizes do not tell apart: ", found.ahead)
                                 : "",
                             of_which(found.skipped)));
  }
  return text;
}

std::string place_text(const HangPlace& place) {
  const std::int64_t step = std::ssize(place.order.step);
  std::string text = line(fmt::format("  in the planned step, over {} ({} ranks): {}", place.order.axis,
                                      place.order.ranks.size(), of_which(place.candidates)));
  text +=
      line(fmt::format("    step {}, if the group made {} collectives before its first step and {} in each; {} of "
                       "{} reported collectives agree with the plan's order",
                       place.step, place.offsets.front(), step, place.agreeing, place.reported));
  if (place.candidates.size() > 1) {
    text +=
        line(fmt::format("    more than one, as they have the same type and size: it is the first with {} "
                         "collectives before the first step, another with more",
                         place.offsets.front()));
  }
  for (const OutOfOrder& found : place.out_of_order) text += out_of_order_text(found);
  return text;
}

std::string text_of(const ExplainedHang& hang, bool has_job) {
  std::string text = line(head_of(hang.hang)) + suspects_of(hang.hang);
  if (hang.place) return text + place_text(*hang.place);
  if (!has_job) return text;
  if (!hang.hang.collective) {
    return text + line("  the texts have no type and size of a collective, so that it has no place in the plan");
  }
  return text + line(
                    "  no collective of the planned step has this type and these elements: check that the job is the "
                    "run's (model, world size, wrapped modules, dtypes)");
}

std::string figure_text(const std::optional<ByteFigure>& figure) { return figure ? memory_text(figure->bytes) : "?"; }

std::string head_of(const ExplainedMemory& memory, const OutOfMemory& text) {
  std::string head = fmt::format("out of memory in line {}", memory.report.line);
  if (memory.report.speaker.rank) head += fmt::format(", on rank {}", *memory.report.speaker.rank);
  if (!text.device.empty()) head += fmt::format(", {}", escaped(text.device));
  head += text.tried ? fmt::format(": {} requested {}", figure_text(text.tried),
                                   text.platform == "CPU" ? "of the host's allocator" : "from the driver")
                     : ": more than 1 EB requested, which is an error of the program";
  if (text.total) head += fmt::format(", {} of {} free", figure_text(text.free), figure_text(text.total));
  return head;
}

std::string holdings_of(const OutOfMemory& text) {
  std::string parts = fmt::format("  PyTorch has {} allocated", figure_text(text.allocated));
  const auto reserved = reserved_by(text);
  if (reserved && text.allocated) {
    parts += fmt::format(", {} reserved and unallocated", memory_text(*reserved - text.allocated->bytes));
  }
  if (reserved && text.in_use) {
    parts += fmt::format(", {} in the process outside of it",
                         memory_text(std::max<std::int64_t>(0, text.in_use->bytes - *reserved)));
  }
  std::string lines = text.allocated ? line(parts) : "";
  for (const ProcessMemory& process : text.processes) {
    lines += line(fmt::format("  process {} has {} of the device", process.pid, memory_text(process.in_use.bytes)));
  }
  if (text.allowed) lines += line(fmt::format("  the process may have {}", memory_text(text.allowed->bytes)));
  if (is_fragmented(text)) {
    lines +=
        line(fmt::format("  fragmentation: the request is smaller than what is reserved and unallocated, but no "
                         "free piece has its size; set PYTORCH_{}_ALLOC_CONF=expandable_segments:True",
                         text.platform == "NPU"   ? "NPU"
                         : text.platform == "HIP" ? "HIP"
                                                  : "CUDA"));
  }
  return lines;
}

std::string placed_text(const PlacedAllocation& placed, const OutOfMemory& text) {
  std::string parts = fmt::format(
      "{}: {}{}, {} step, the plan has {} allocated before it", plan::to_text(placed.place), memory_text(placed.bytes),
      text.platform == "CPU" ? "" : fmt::format(" ({} from the driver)", memory_text(placed.segment_bytes)),
      placed.step == 1 ? "first" : "any later", memory_text(placed.allocated_before_bytes));
  if (text.allocated) parts += fmt::format(", the text {}", memory_text(text.allocated->bytes));
  return parts;
}

std::string changes_text(const MemoryPlace& place) {
  if (!place.limit_bytes) return "";
  std::string text = line(fmt::format(
      "  planned step {}: peak reserved {}, peak allocated {}; PyTorch could have {} here{}", time_text(place.step_ns),
      memory_text(place.peak_reserved_bytes), memory_text(place.peak_allocated_bytes), memory_text(*place.limit_bytes),
      place.beyond_plan_bytes > 0
          ? fmt::format(", less {} that the run had allocated beyond the plan", memory_text(place.beyond_plan_bytes))
          : ""));
  if (place.changes.empty()) {
    return text + line("  no change of the settings, nor two together, would make it fit");
  }
  text += line("  it would fit, the fastest first, with");
  for (const FittingChange& change : place.changes) {
    text += wrapped(fmt::format("    {} (step {}, peak reserved {})\n", change.change, time_text(change.step_ns),
                                memory_text(change.peak_reserved_bytes)),
                    2 * kIndent);
  }
  return text;
}

std::string text_of(const MemoryPlace& place, const OutOfMemory& text) {
  std::string lines;
  if (place.places.empty() && text.tried) {
    lines += line(
        "  no allocation of the planned step has that size: check that the job is the run's (model, sequence length, "
        "micro-batch, dtypes)");
  } else if (place.places.empty()) {
    lines += line("  the text has no size and no allocated bytes, so that it has no place in the plan");
  } else if (!place.size_matches) {
    lines += line(
        "  no allocation of the planned step requests that size: check that the job is the run's (model, "
        "sequence length, micro-batch, dtypes); where as much is allocated:");
  } else {
    lines += line(place.by_trace ? "  in the plan of the job, where the trace of FSDP2 leaves the rank:"
                  : place.by_traceback
                      ? "  in the plan of the job, of the phase that the traceback says, the likeliest first:"
                      : "  in the plan of the job, the likeliest first:");
  }
  for (const PlacedAllocation& placed : place.places) {
    lines += wrapped("    " + placed_text(placed, text) + "\n", 2 * kIndent);
  }
  return lines + changes_text(place);
}

std::string text_of(const ExplainedMemory& memory) {
  const auto& text = std::get<OutOfMemory>(memory.report.what);
  std::string lines = line(head_of(memory, text)) + holdings_of(text);
  if (memory.texts > 1) {
    lines +=
        line(fmt::format("  it is the first of {} such texts{}", memory.texts,
                         memory.ranks.empty() ? "" : fmt::format("; {} ran out of memory", ranks_of(memory.ranks))));
  }
  return memory.place ? lines + text_of(*memory.place, text) : lines;
}

std::string_view meaning_of(std::string_view code) {
  if (code == "EI0002") return "a rank waited for another one longer than HCCL_EXEC_TIMEOUT";
  if (code == "EI0006") return "a connection to another rank was not made within HCCL_CONNECT_TIMEOUT";
  if (code == "ERR02200") return "a call of HCCL failed";
  if (code == "ERR00100") return "a call of the device's runtime failed";
  if (code == "ERR01100") return "an operator failed";
  return "see the text";
}

std::string text_of(const ErrorReport& report, const HcclError& error) {
  std::string text = fmt::format("{} (line {}): {}", error.code, report.line, meaning_of(error.code));
  const auto rank = error.rank ? error.rank : report.speaker.rank;
  if (rank) text += fmt::format("; rank {}", *rank);
  if (!error.tag.empty()) text += fmt::format("; in {}", escaped(error.tag));
  if (error.rank_size) text += fmt::format(" of {} ranks", *error.rank_size);
  std::string lines = line(text);
  if (!error.remote_rank.empty()) {
    lines += line(
        fmt::format("  suspect: rank {}, which did not answer; look at its log first", escaped(error.remote_rank)));
  }
  if (error.code == "EI0006") {
    lines += line("  suspects: ranks without this text, which never came to the connection");
  }
  return lines;
}

// What gloo says has neither a number nor a size.
std::string gloo_text(const Explanation& explanation) {
  std::vector<std::int64_t> waited, closed;
  for (const ErrorReport& report : explanation.texts.reports) {
    const auto* gloo = std::get_if<GlooError>(&report.what);
    if (gloo == nullptr || !report.speaker.rank) continue;
    std::vector<std::int64_t>& ranks = gloo->timed_out ? waited : closed;
    if (std::ranges::find(ranks, *report.speaker.rank) == ranks.end()) ranks.push_back(*report.speaker.rank);
  }
  std::ranges::sort(waited);
  std::ranges::sort(closed);
  std::string text;
  if (!waited.empty()) text += line(fmt::format("gloo: {} waited for another rank in vain", ranks_of(waited)));
  if (!closed.empty()) {
    text += line(fmt::format("gloo: {} lost the connection to another rank, which ended before", ranks_of(closed)));
  }
  const bool placed = explanation.trace || std::ranges::any_of(explanation.hangs, [](const ExplainedHang& hang) {
                        return hang.hang.collective.has_value();
                      });
  if (text.empty() || placed) return text;
  return text + line(
                    "  these texts name no collective and no module; run with TORCH_DISTRIBUTED_DEBUG=DETAIL and "
                    "TORCH_LOGS=+fsdp, and explain that log");
}

std::string source_text(const Explanation& explanation) {
  if (explanation.source.empty()) return "";
  std::map<std::string_view, std::int64_t> counts;
  for (const ErrorReport& report : explanation.texts.reports) ++counts[kind_of(report)];
  std::vector<std::string> kinds;
  for (const auto& [kind, count] : counts) kinds.push_back(fmt::format("{} {}", count, kind));
  if (explanation.trace) kinds.push_back(fmt::format("trace of {} ranks", explanation.trace->finding.ranks.size()));
  std::string text = fmt::format("{}: {} line{}; {}", escaped(explanation.source), explanation.texts.lines,
                                 explanation.texts.lines == 1 ? "" : "s", fmt::join(kinds, ", "));
  if (explanation.texts.left_out > 0)
    text += fmt::format("; {} further texts were not kept", explanation.texts.left_out);
  return line(text);
}

}  // namespace

std::string to_text(const Explanation& explanation) {
  std::string text = source_text(explanation);
  if (explanation.memory) text += text_of(*explanation.memory);
  for (const ExplainedHang& hang : explanation.hangs) text += text_of(hang, explanation.has_job);
  if (explanation.trace) text += to_text(*explanation.trace);
  text += gloo_text(explanation);
  for (const ErrorReport& report : explanation.texts.reports) {
    if (const auto* error = std::get_if<HcclError>(&report.what)) text += text_of(report, *error);
  }
  for (const std::string& note : explanation.notes) text += line("note: " + note);
  if (!explanation.has_job) {
    text += line(
        "The job's words behind the text (a configuration file and flags, as of shardloom plan) say which "
        "group and phase of the step it was.");
  }
  return text;
}

}  // namespace loom::explain
