// The lines of metrics.jsonl, read back.
//
// Resumed  a run that goes on from a checkpoint makes steps again that are there already: the later line counts. A line
//          of an evaluation alone, which has no loss, takes the place of none: its keys are added.
// Limits   1 MiB and 64 levels a line, 10 million steps.
// Errors   ConfigError "FILE:LINE: ..." for a line that is no JSON object, has no step, or a figure that is neither a
//          number nor null.
// Threads  any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

namespace loom::observe {

struct MetricsFile {
  std::vector<nlohmann::ordered_json> lines;  // one a step, by step
  std::int64_t repeated = 0;                  // lines in whose place a later one came
};

MetricsFile read_metrics(const std::filesystem::path& path);

}  // namespace loom::observe
