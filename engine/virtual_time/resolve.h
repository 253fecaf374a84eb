// Resolution of virtual time: when everything in the recordings of one or many ranks begins and ends.
//
// Host      issues its entries in order, each after the host cost of the one before; the host waits where it waited in
//           the run. Its clock begins at 0 on every rank.
// Streams   an item starts at max(stream free, events waited for, issued by the host). A wait of a stream is an item of
//           no length.
// Meeting   a collective starts when it is at the head of its stream on every member that is here, and ends on all of
//           them together. Members that are not here are taken to be alike: no rank waits for them.
// Sharing   kernels and copies inside the device run on its cores: those of several streams share them equally. While
//           collectives of the rank run, all of them lose the share that the profile gives for the links, the largest.
//           Collectives of one rank on the same level of links share it equally, and a collective is as fast as its
//           slowest member lets it be. Copies over the host link take nothing from anybody.
// Bits      int64 ns; the same recordings give the same answer every time.
// Errors    InvariantError when ranks cannot meet: collectives that differ, or an order in which everybody waits.
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
  kCounted,  // what the host pays for dispatch
  kFree,     // dispatch costs nothing: what the devices and links alone would need. The CPU's own work still counts.
};

// Times of one entry in ns; a host entry: when the host reaches and leaves it.
struct EntryTime {
  std::int64_t issued = 0;  // by the host
  std::int64_t start = 0;
  std::int64_t end = 0;
};

// Where the step stood when the host began a phase.
struct PhaseTime {
  std::int64_t entry = 0;       // index of the phase in Recording::entries
  std::int64_t host_ns = 0;     // the host passes
  std::int64_t compute_ns = 0;  // the compute stream is done with what was issued before (as a timing event says)
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
