// Trace: what the host issued, in host order. The observable order of a run: the same under both executors.
//
// Two kinds of entries: stream items (stream, name, subject, cost) and marks (a token such as "AG:layers.3", with bytes
// and dtype), which floors above add for what happens without device work. Off by default; nothing is stored then.
// Threads  the rank's host thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/device/stream.h"

namespace loom::device {

struct TraceEntry {
  std::string stream{};   // "" for a mark
  std::string name{};     // item name, or a mark's kind: "AG", "W", "RE", "RS", ...
  std::string subject{};  // "layers.3"
  Cost cost{};
  std::int64_t bytes = 0;     // marks of collectives: bytes of this rank's input
  DType dtype = DType::kF32;  // marks of collectives: dtype on the wire
  std::int64_t count = 0;     // marks of reductions: parameters in it
  bool prefetched = false;    // marks of gathers: issued on behalf of another group
};

class Trace {
 public:
  void enable(bool on) { enabled_ = on; }
  bool enabled() const { return enabled_; }
  void add_item(std::string_view stream, const StreamItem& item);
  void mark(TraceEntry entry);
  const std::vector<TraceEntry>& entries() const { return entries_; }
  void clear() { entries_.clear(); }

 private:
  bool enabled_ = false;
  std::vector<TraceEntry> entries_;
};

}  // namespace loom::device
