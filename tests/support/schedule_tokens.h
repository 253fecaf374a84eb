// The tokens of tests/reference/README.md from a device's trace: "AG:layers.0", "RS:head[1]", "B", ...
#pragma once

#include <fmt/format.h>
#include <set>
#include <string>
#include <vector>

#include "engine/device/trace.h"

namespace loom::test {

// In host order. What is not in the references' vocabulary is left out.
inline std::vector<std::string> schedule_tokens(const device::Trace& trace) {
  static const std::set<std::string> kBare{"B", "O"};
  static const std::set<std::string> kOfModules{"F", "f", "AG", "W", "RE", "REPF"};
  static const std::set<std::string> kCounted{"RS", "RSAR"};
  std::vector<std::string> tokens;
  for (const device::TraceEntry& entry : trace.entries()) {
    if (!entry.stream.empty()) continue;
    if (kBare.contains(entry.name)) tokens.push_back(entry.name);
    if (kOfModules.contains(entry.name)) tokens.push_back(entry.name + ":" + entry.subject);
    if (kCounted.contains(entry.name))
      tokens.push_back(fmt::format("{}:{}[{}]", entry.name, entry.subject, entry.count));
  }
  return tokens;
}

}  // namespace loom::test
