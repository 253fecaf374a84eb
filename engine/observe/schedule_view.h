// ScheduleView: the work that one step issued, in host order, and its wasted prefetches.
//
// Source    the recording of that step: work of streams and marks (device/recording.h).
// Events    IN    gather-copy-in: shards copied into their place
//           AG    gather: the all-gather
//           W     compute: a gather waited for, copied out if the layout needs it; the parameters are usable
//           RE    resharded; REPF to the post-forward shards (no stream)
//           DROP  a gather that nothing waited for was freed (no stream)
//           run   compute: kernels issued one after another
//           RIN   compute: gradients copied into the reduction's input
//           RS    reduce-scatter: the reduce-scatter
//           AR    all-reduce: the all-reduce of a hybrid mesh
//           B, O  backward and the optimizer's step begin (no stream)
// Bytes     written by copies, received over links by collectives, read and written by kernels.
// Peaks     of the recorded memory, over the whole step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/device/recording.h"

namespace loom::observe {

struct ScheduleEvent {
  std::string stream;  // "" for events on the host alone
  std::string token;
  std::string group;  // path; "" is the root, or none for tokens without a group
  std::int64_t bytes = 0;
  std::optional<DType> dtype = {};  // of gathers and reductions
  std::int64_t kernels = 0;         // of a run
  bool has_group = true;
  bool prefetched = false;  // of a gather: issued on behalf of another group
};

// A gather that was issued ahead for nothing. Events are counted from 1.
struct WastedPrefetch {
  enum class Why : std::uint8_t {
    kNothingToHideBehind,  // waited for before any kernel of another group
    kNeverUsed,            // dropped
    kOutOfOrder,           // groups gathered later were waited for earlier: it held memory for nothing
  };
  std::string group;
  std::size_t issued = 0;
  std::size_t ended = 0;  // its W or DROP
  Why why = Why::kNothingToHideBehind;
  std::size_t overtaken = 0;  // kOutOfOrder: groups gathered later and waited for earlier
};

struct ScheduleView {
  std::vector<ScheduleEvent> events;
  std::vector<WastedPrefetch> wasted;
  std::int64_t peak_unsharded_bytes = 0;
  std::int64_t peak_gather_buffer_bytes = 0;
};

// The recording holds one step. Without recorded memory the peaks are 0.
ScheduleView view_schedule(const device::Recording& recording);

// A line per event: number, stream, token, group, bytes, dtype or kernels. Consecutive copies and host work of single
// parameters are a line for each stream and name: the numbers of the first and the last, their group, the sum of their
// bytes. Then a line per stream, the peaks, and a line per wasted prefetch.
std::string to_text(const ScheduleView& view);

// One line, without its line end.
std::string to_text(const WastedPrefetch& wasted);

}  // namespace loom::observe
