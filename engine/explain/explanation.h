// Explanation: what the error texts of a run mean, and with the run's job: where in its step they arose.
//
// Memory   the first out of memory of the log, and its place in the plan (memory_place.h).
// Hangs    each process group whose watchdogs report: which ranks are behind, silent or out of order (hang.h), and the
//          collective of the planned step (hang_place.h). A pipeline's order is that of the place with the first rank
//          that reports.
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

struct Explanation {
  std::string source;  // the file; empty: a text
  LogTexts texts;
  bool has_job = false;
  std::optional<ExplainedMemory> memory;
  std::vector<std::string> notes;  // what is not explained, and why
  std::vector<ExplainedHang> hangs;
};

// `job` may be null.
Explanation explain(std::string source, LogTexts texts, const JobOfRun* job);

// At most kTextColumns a line.
std::string to_text(const Explanation& explanation);
nlohmann::ordered_json to_json(const Explanation& explanation);

// "out of memory of PyTorch and torch_npu, ...": the texts that are understood, for messages.
std::string_view understood_texts();

}  // namespace loom::explain
