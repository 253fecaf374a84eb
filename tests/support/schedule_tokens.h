// The tokens of tests/reference/README.md from a recording's marks: "AG:layers.0", "RS:head[1]", "B", ...
#pragma once

#include <fmt/format.h>
#include <string>
#include <vector>

#include "engine/device/recording.h"

namespace loom::test {

// In host order. What is not in the references' vocabulary is left out.
inline std::vector<std::string> schedule_tokens(const device::Recording& recording) {
  std::vector<std::string> tokens;
  for (const device::Mark& mark : recording.marks) {
    const std::string& subject = recording.text(mark.subject);
    switch (mark.kind) {
      case device::MarkKind::kBackward:
      case device::MarkKind::kOptimizer:
        tokens.emplace_back(token(mark.kind));
        break;
      case device::MarkKind::kReduceScatter:
      case device::MarkKind::kReduceScatterAllReduce:
        tokens.push_back(fmt::format("{}:{}[{}]", token(mark.kind), subject, mark.count));
        break;
      case device::MarkKind::kDrop:
        break;
      default:
        tokens.push_back(fmt::format("{}:{}", token(mark.kind), subject));
    }
  }
  return tokens;
}

}  // namespace loom::test
