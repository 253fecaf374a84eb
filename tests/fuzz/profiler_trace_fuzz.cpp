// A trace of torch.profiler, and the figures of its last step.
#include "engine/explain/step_figures.h"
#include "engine/formats/torch/profiler_trace.h"
#include "tests/fuzz/fuzz.h"

LOOM_FUZZ_TARGET(profiler_trace) {
  using namespace loom;
  return fuzz::answered_or_refused([&] {
    const std::filesystem::path file = fuzz::written("trace.json", fuzz::text_of(data, size));
    const io::ProfilerTrace trace = io::read_profiler_trace(file);
    const explain::StepFigures figures = explain::figures_of(trace, "trace.json");
    if (figures.works > trace.work.size()) fuzz::found("more work than the trace has", "");
  });
}
