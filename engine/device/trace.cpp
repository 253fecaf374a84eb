#include "engine/device/trace.h"

namespace loom::device {

void Trace::add_item(std::string_view stream, const StreamItem& item) {
  if (!enabled_ || item.name.empty()) return;
  entries_.push_back({std::string(stream), std::string(item.name), std::string(item.subject), item.cost});
}

void Trace::mark(TraceEntry entry) {
  if (enabled_) entries_.push_back(std::move(entry));
}

}  // namespace loom::device
