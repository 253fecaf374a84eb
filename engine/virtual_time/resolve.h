// Resolution of virtual time: the begin and end of every entry in the recordings of one or many ranks.
//
// Host      issues its entries in order, each after the host cost of the previous entry; the host waits where it waited
//           in the run. Its clock begins at 0 on every rank.
// Streams   an item starts at max(stream free, events waited for, issued by the host). A wait of a stream is an item
//           that takes no time.
// Meeting   a collective starts when it is at the head of its stream on every resolved member, and ends on all of them
//           together. Members without a recording are assumed to be alike: no rank waits for them.
// Sharing   kernels and copies inside the device run on its cores, which the streams share equally. While collectives
//           of the rank run, all of these lose the profile's share for the links, the largest one.
//           Collectives of one rank on the same level of links share it equally, and the slowest member limits a
//           collective; a message that the rank sends and one that it receives do not slow each other down. Copies over
//           the host link slow down nothing else.
// Slowest   ranks wait for each other, and of more nodes the slowest is slower: compute runs at 1 / (1 + loss * log2 of
//           the nodes of the rank's largest group) of its rate, with the profile's links.loss_per_doubling.
// Bits      int64 ns; the same recordings give the same answer every time.
// Errors    InvariantError when ranks cannot meet: collectives that differ, or an order in which all ranks wait.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/device/recording.h"
#include "engine/virtual_time/time_model.h"

namespace loom::virtual_time {

struct RankRecording {
  int rank = 0;  // in the world
  const device::Recording* recording = nullptr;
};

enum class HostCosts : std::uint8_t {
  kCounted,  // the host's cost of dispatch
  kFree,     // dispatch costs nothing: the time of devices and links alone. The CPU's own work still counts.
};

// Times of one entry in ns; a host entry: when the host reaches and leaves it.
struct EntryTime {
  std::int64_t issued = 0;  // by the host
  std::int64_t start = 0;
  std::int64_t end = 0;
};

// The progress of the step when the host began a phase.
struct PhaseTime {
  std::int64_t entry = 0;       // index of the phase in Recording::entries
  std::int64_t host_ns = 0;     // the host passes
  std::int64_t compute_ns = 0;  // the compute stream is done with earlier work (the time of a timing event)
  std::int64_t device_ns = 0;   // all streams are
};

struct RankTimes {
  int rank = 0;
  std::vector<EntryTime> entries;  // as Recording::entries
  std::vector<PhaseTime> phases;
  std::int64_t host_end_ns = 0;
  std::int64_t end_ns = 0;  // host and all streams
};

struct VirtualTimes {
  std::vector<RankTimes> ranks;  // as given
  std::int64_t end_ns = 0;
};

VirtualTimes resolve(std::span<const RankRecording> ranks, const TimeModel& model,
                     HostCosts host_costs = HostCosts::kCounted);

}  // namespace loom::virtual_time
