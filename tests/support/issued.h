// What a recording holds of work and marks, in the order of the host and in words, as tests of order read it.
#pragma once

#include <string>
#include <vector>

#include "engine/device/recording.h"

namespace loom::test {

struct Issued {
  std::string stream{};   // "host" for the host's own work; "" for a mark
  std::string name{};     // of the work, or a mark's token: "AG", "W", "RE", "RS", ...
  std::string subject{};  // "layers.3"
  device::Cost cost{};
  std::int64_t bytes = 0;  // of marks, as device::Mark has them; and below
  DType dtype = DType::kF32;
  std::int64_t count = 0;
  bool prefetched = false;

  bool is_mark() const { return stream.empty(); }
};

inline std::vector<Issued> issued(const device::Recording& recording) {
  std::vector<Issued> all;
  recording.visit(
      [&](const device::Entry& entry) {
        const bool host = entry.kind == device::EntryKind::kHostWork;
        if (!host && !device::is_stream_work(entry.kind)) return;
        all.push_back({.stream = std::string(host ? "host" : entry.stream.name()),
                       .name = recording.text(entry.name),
                       .subject = recording.text(entry.subject),
                       .cost = entry.cost});
      },
      [&](const device::Mark& mark) {
        all.push_back({.name = std::string(mark.kind.token()),
                       .subject = recording.text(mark.subject),
                       .bytes = mark.bytes,
                       .dtype = mark.dtype,
                       .count = mark.count,
                       .prefetched = mark.prefetched});
      });
  return all;
}

}  // namespace loom::test
