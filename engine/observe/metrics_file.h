// The lines of metrics.jsonl, read back.
//
// Resumed  a resumed run repeats steps that have a line already: the later line counts. A line
//          of an evaluation alone, without a loss, replaces none: its keys are added.
// Limits   1 MiB and 64 levels a line, 10 million steps.
// Errors   ConfigError "FILE:LINE: ..." for a line that is not a JSON object, has no step, or has a figure that is
//          neither a number nor null.
// Threads  any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

namespace loom::observe {

struct MetricsFile {
  std::vector<nlohmann::ordered_json> lines;  // one per step, by step
  std::int64_t repeated = 0;                  // lines that a later one replaced
};

MetricsFile read_metrics(const std::filesystem::path& path);

}  // namespace loom::observe
