#include "engine/explain/step_groups.h"

#include <algorithm>

#include "engine/core/shown_path.h"
#include "sharding/marks.h"

namespace loom::explain {

std::string pattern_of(std::string_view path) {
  std::string pattern;
  while (!path.empty()) {
    const std::size_t dot = std::min(path.find('.'), path.size());
    const std::string_view part = path.substr(0, dot);
    const bool number = std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    if (!pattern.empty()) pattern += '.';
    pattern += number ? std::string_view("{*}") : part;
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return pattern;
}

StepGroups::StepGroups(const device::Recording& recording) {
  for (const device::Mark& mark : recording.marks) {
    if (mark.kind == sharding::kGatherMark) paths_.insert(recording.text(mark.subject));
  }
}

std::string StepGroups::of(std::string_view module) const {
  for (std::string_view path = module; !path.empty();) {
    if (paths_.contains(path)) return pattern_of(path);
    const std::size_t dot = path.rfind('.');
    path = path.substr(0, dot == std::string_view::npos ? 0 : dot);
  }
  return paths_.contains("") ? shown_path("") : "";
}

}  // namespace loom::explain
