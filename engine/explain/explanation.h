// Explanation: what the error texts of a run mean, and with the run's job: where in its step they arose.
//
// Memory   the first out of memory of the log, and its place in the plan (memory_place.h).
// Hangs    each process group whose watchdogs report: which ranks are behind, silent or out of order (hang.h), and the
//          collective of the planned step (hang_place.h). A pipeline's order is that of the place with the first rank
//          that reports.
// Trace    the lines that FSDP2 writes with TORCH_LOGS=+fsdp: which rank left the order of the others, and where
//          (trace_fault.h). It also says which of several places an out of memory has, and what a rank skipped.
// HCCL     codes with the ranks that they name.
// Job      planned in unlimited memory: the run had what it had.
// Threads  the calling thread, and those of plans.
// Errors   those of plans.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/explain/hang_place.h"
#include "engine/explain/log_reader.h"
#include "engine/explain/memory_place.h"
#include "engine/explain/trace_fault.h"
#include "engine/plan/plan_search.h"

namespace loom::explain {

// The first out of memory of the log: later ones may follow from it.
struct ExplainedMemory {
  ErrorReport report;
  std::vector<std::int64_t> ranks;   // of the world, that ran out of memory, as far as the lines say
  std::int64_t texts = 0;            // of all ranks
  std::optional<MemoryPlace> place;  // none: no job, or one with a pipeline
};

struct ExplainedHang {
  Hang hang;
  std::optional<HangPlace> place;  // none: no job, or nothing of its step agrees
};

struct ExplainedTrace {
  TraceFinding finding;
  bool is_cut = false;                        // FsdpTrace
  std::optional<std::int64_t> micro_batches;  // of a step of the job; none: no job
  std::vector<std::string> unplanned;         // groups of the faults that the plan does not have

  // If all passes are of training; none: no job.
  std::optional<PassOfJob> batch_of(std::int64_t pass) const;
};

struct Explanation {
  std::string source;  // the file; empty: a text
  LogTexts texts;
  bool has_job = false;
  std::optional<ExplainedMemory> memory;
  std::vector<std::string> notes;  // what is not explained, and why
  std::vector<ExplainedHang> hangs;
  std::optional<ExplainedTrace> trace = {};
};

// `job` may be null.
Explanation explain(std::string source, LogTexts texts, const JobOfRun* job);

// At most kTextColumns a line.
std::string to_text(const Explanation& explanation);
std::string to_text(const ExplainedTrace& trace);
nlohmann::ordered_json to_json(const Explanation& explanation);

// Whether a log says anything: an error text, or ranks that left the order of a trace.
bool is_understood(const LogTexts& texts);
// "out of memory of PyTorch and torch_npu, ...": the texts that are understood, for messages.
std::string_view understood_texts();

}  // namespace loom::explain
