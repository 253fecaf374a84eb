// The tokens of tests/reference/README.md from a recording's marks: "AG:layers.0", "RS:head[1]", "B", ...
#pragma once

#include <fmt/format.h>
#include <string>
#include <vector>

#include "engine/device/recording.h"
#include "sharding/marks.h"
#include "tests/support/step_marks.h"

namespace loom::test {

// In host order. What is not in the references' vocabulary is left out.
inline std::vector<std::string> schedule_tokens(const device::Recording& recording) {
  std::vector<std::string> tokens;
  for (const device::Mark& mark : recording.marks) {
    const std::string& subject = recording.text(mark.subject);
    const std::string token(mark.kind.token());
    if (mark.kind == sharding::kDropMark) continue;
    if (mark.kind == test::kBackwardMark || mark.kind == test::kOptimizerMark) {
      tokens.push_back(token);
    } else if (mark.kind == sharding::kReduceScatterMark || mark.kind == sharding::kReduceScatterAllReduceMark) {
      tokens.push_back(fmt::format("{}:{}[{}]", token, subject, mark.count));
    } else {
      tokens.push_back(fmt::format("{}:{}", token, subject));
    }
  }
  return tokens;
}

}  // namespace loom::test
