// StepGroups: the FSDP groups of a recorded step. Private to engine/explain.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "engine/device/recording.h"

namespace loom::explain {

// "model.layers.3.mlp" as "model.layers.{*}.mlp".
std::string pattern_of(std::string_view path);

class StepGroups {
 public:
  explicit StepGroups(const device::Recording& recording);

  // The pattern of the innermost one that has the module, the root's for all others; empty: there is none.
  std::string of(std::string_view module) const;
  bool has(std::string_view path) const { return paths_.contains(path); }

 private:
  std::set<std::string, std::less<>> paths_;
};

}  // namespace loom::explain
