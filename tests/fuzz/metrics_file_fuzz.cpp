// metrics.jsonl: every line that is read has a step, and steps ascend.
#include "engine/observe/metrics_file.h"
#include "tests/fuzz/fuzz.h"

LOOM_FUZZ_TARGET(metrics_file) {
  using namespace loom;
  return fuzz::answered_or_refused([&] {
    std::int64_t last = -1;
    const auto file = observe::read_metrics(fuzz::written("metrics.jsonl", fuzz::text_of(data, size)));
    for (const auto& line : file.lines) {
      const auto step = line.at("step").get<std::int64_t>();
      if (step <= last) fuzz::found("a step that does not ascend", line.dump());
      last = step;
    }
  });
}
