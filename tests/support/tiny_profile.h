// A made-up device on which every time is a round number.
//
//   work      a byte a ns, read or written; 2 FLOP a ns of matrix products and attention in every type
//   links     nodes of 2 devices: a byte a ns, no latency; between nodes: half a byte a ns
//   host      dispatch and waits cost nothing; a byte a ns of its own work
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/core/rank_context.h"
#include "engine/device/recorder.h"
#include "engine/device/stream.h"
#include "engine/virtual_time/profile.h"

namespace loom::test {

inline constexpr device::StreamId kGatherStream{2, "gather"};
inline constexpr device::StreamId kReduceScatterStream{3, "reduce_scatter"};

inline virtual_time::HardwareProfile tiny_profile() {
  virtual_time::HardwareProfile p;
  p.name = "tiny";
  p.memory = {.capacity_bytes = 1 << 30, .bandwidth_bytes_per_s = 1e9};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64})
    p.matrix.peak_flops_per_s[dtype] = 2e9;
  p.matrix.tiles = {{1, 1}};
  p.vector.flops_per_s = 1e9;
  p.links.levels = {{.name = "node", .devices = 2, .bandwidth_bytes_per_s = 1e9},
                    {.name = "cluster", .bandwidth_bytes_per_s = 0.5e9}};
  p.host_link = {.h2d_pinned_bytes_per_s = 1e9,
                 .d2h_pinned_bytes_per_s = 0.5e9,
                 .h2d_pageable_bytes_per_s = 0.25e9,
                 .d2h_pageable_bytes_per_s = 0.125e9};
  p.host = {.memory_bandwidth_bytes_per_s = 1e9, .flops_per_s = 1e9, .numa_node_of_device = {0, 0}};
  return p;
}

// A recording by hand: items by their length on the tiny device.
class HandMade {
 public:
  // ns of work on the compute stream; the number of its entry.
  std::int64_t compute(std::int64_t ns) { return kernel("kernel", {.read_bytes = ns}); }
  std::int64_t kernel(std::string_view name, const device::Cost& cost) {
    return on_stream(device::StreamId::kCompute, name, cost);
  }
  // A copy of ns on another stream.
  std::int64_t copy(device::StreamId stream, std::int64_t ns) {
    return on_stream(stream, "copy", {.read_bytes = ns, .unit = device::Unit::kCopy});
  }
  // Over the host link, pinned; ns at a byte a ns.
  std::int64_t to_device(std::int64_t ns) {
    return on_stream(device::StreamId::kH2D, "h2d", host_link(ns, device::WorkKind::kH2D));
  }
  std::int64_t to_host(std::int64_t ns) {
    return on_stream(device::StreamId::kD2H, "d2h", host_link(ns, device::WorkKind::kD2H));
  }
  std::int64_t collective(device::StreamId stream, device::CollectiveKind kind, std::int64_t bytes,
                          const std::vector<int>& ranks) {
    device::StreamItem item{"collective", "", {.unit = device::Unit::kLink}, nullptr};
    item.collective = device::Collective{kind, bytes, &ranks};
    log().add_item(stream, item);
    return log().last_of(stream);
  }
  // That takes ns inside a node of two.
  std::int64_t gather(std::int64_t ns, const std::vector<int>& ranks) {
    return collective(kGatherStream, device::CollectiveKind::kAllGather, 2 * ns, ranks);
  }
  std::int64_t reduce(std::int64_t ns, const std::vector<int>& ranks) {
    return collective(kReduceScatterStream, device::CollectiveKind::kReduceScatter, 2 * ns, ranks);
  }
  void wait(device::StreamId stream, std::int64_t entry) { log().add_stream_wait(stream, entry); }
  void phase(std::string_view name) { log().add_phase(name); }
  device::IssueLog& log() { return device_.log(); }
  // What was made by hand from here on.
  void begin_again() { recorder_.clear(); }
  device::Recording recording() const { return recorder_.recording(); }

 private:
  static device::Cost host_link(std::int64_t ns, device::WorkKind work) {
    return {.read_bytes = ns, .unit = device::Unit::kHostLink, .pinned = true, .work = work};
  }
  std::int64_t on_stream(device::StreamId stream, std::string_view name, const device::Cost& cost) {
    log().add_kernel(stream, name, cost);
    return log().last_of(stream);
  }

  RankContext context_{0, 1};
  device::Device device_{{.dry_run = true}, &context_};
  device::Recorder recorder_{device_};
};

}  // namespace loom::test
