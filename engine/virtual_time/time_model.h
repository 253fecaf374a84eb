// TimeModel: how long a piece of work takes on a kind of device, in virtual ns.
//
//   element-wise, copies  max(bytes / (bandwidth * streaming * relative rate), flops / rate) + ramp + launch
//   matrix products       max(flops / (peak * eff(m, n, k)), bytes as above) + launch; eff is the best over the tiles
//                         of efficiency * waves * k / (k + k_half) * reuse / (reuse + half) * power limit
//   FP8 products          those that profile.fp8 has (fp8.h): flops / (fp8 peak * eff * fp8 efficiency / efficiency),
//                         with the same correction, + their casts as streamed bytes and a launch
//   attention             flops / (peak * efficiency * s / (s + s_half) * d / (d + d_half) * w / (w + w_half)) +
//                         launch; waves w = heads * ceil(queries / tile) / cores
//   measured kernels      products and attention near the profile's measured points are corrected by them: times e to
//                         the mean of log(measured / formula) over the points of that kernel and dtype, each weighted
//                         with exp(-(distance / reach)^2 / 2), distance in doublings of the sizes, and no correction
//                         with 1 / weight
//   host links            bytes / rate of the direction, pinned or pageable, + latency
//   collectives           launch + legs, one for each level of links that the group crosses. A leg of n members that
//                         moves S bytes in all, B = bandwidth * efficiency, B(x) = B * x / (x + half) for messages of
//                         x bytes:
//                           ring      (n - 1) * (latency + (S / n) / B(S / n)); all-reduce twice that, or a tree's
//                                     2 ceil(log2 n) * (latency + S / B(S)) where that is less
//                           doubling  ceil(log2 n) * latency + (n - 1) * (S / n) / B(S / n); all-reduce twice that
//                           direct    latency + (S / n) / (B(S / n) / (devices of the domain - 1)); all-reduce twice
//                                     that
//                         The farther level moves the part left by the nearer levels (S over their members), and the
//                         legs overlap: the longest + (the sum of the others) / pipeline_chunks.
//                         An all-to-all does not divide its data this way: each level moves the part that stays
//                         within it (S over the members of the farther levels), and the longest leg is its time.
//                         A message passes one link: latency + S / B(S), over the devices of the domain - 1 on a full
//                         mesh. The messages of a ring pass at once, in the time of the slowest level that it crosses.
//
// Kernels  are matched by name if the profile gives them a relative rate or measured points. The formula
//          follows from the cost alone: its unit, and its work where attention goes backward or a copy goes to the
//          host.
// Threads  any; nothing changes after construction.
// Errors   DeviceError when the profile gives no peak for a dtype.
// Source   the formulas of published planners (Calculon, SimuMax) and of NCCL's and HCCL's documentation: rings, trees,
//          halving and doubling.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/device/cost.h"
#include "engine/virtual_time/profile.h"

namespace loom::virtual_time {

// How a group lies on the links: for each level, how many domains of the level below (on the nearest: devices) it has
// in one domain of this level; where domains differ, the most.
struct GroupShape {
  std::vector<std::int64_t> members;
};

// One level's part in a collective.
struct CollectiveLeg {
  std::int64_t level = 0;     // of LinkProfile::levels
  std::int64_t members = 0;   // n
  double bytes = 0;           // S
  double received_bytes = 0;  // by one rank over this level's links
  double time_ns = 0;
};

struct CollectiveTime {
  std::int64_t time_ns = 0;
  std::vector<CollectiveLeg> legs;  // empty for a group of one
  std::uint32_t levels = 0;         // bit l: a leg on level l
  double compute_slowdown = 0;      // of the members' compute: the most that a level takes
};

class TimeModel {
 public:
  explicit TimeModel(HardwareProfile profile);

  const HardwareProfile& profile() const { return profile_; }

  // Work on the device: a kernel, a copy, a host-link copy.
  std::int64_t work_ns(std::string_view kernel, const device::Cost& cost) const;
  // The host's cost of issuing work other than a collective.
  static std::int64_t dispatch_ns(const LaunchProfile& launch, const device::Cost& cost);
  // Work of the CPU on host tensors.
  std::int64_t host_work_ns(const device::Cost& cost) const;
  // `ranks`: world ranks, ascending.
  GroupShape shape_of(std::span<const int> ranks) const;
  CollectiveTime collective(device::CollectiveKind kind, std::int64_t bytes, const GroupShape& shape) const;
  // Of those `bytes`, as many as the links carry: less for the gather of a group in FP8. `subject`: the entry's.
  std::int64_t carried_bytes(device::CollectiveKind kind, std::int64_t bytes, std::string_view subject) const;

  // Share of the peak that a product reaches by the formula alone, without memory, launch and measured points.
  // The tiles of a batch of products fill the cores together; none is shared by two products.
  double matrix_efficiency(std::int64_t m, std::int64_t n, std::int64_t k, double flops, std::int64_t batch = 1) const;

 private:
  double stream_ns(std::string_view kernel, double bytes) const;
  double peak(DType dtype) const;
  double matrix_ns(const device::Cost& cost) const;
  double fp8_ns(std::string_view kernel, const device::Cost& cost) const;
  double attention_ns(const device::Cost& cost) const;
  // The time by the formula alone.
  double formula_ns(const device::Cost& cost) const;
  double host_link_ns(const device::Cost& cost) const;

  // log(measured / formula) at a measured kernel.
  struct Deviation {
    std::string kernel;
    DType dtype;
    std::array<double, 3> sizes;  // log2
    double log_ratio;
  };
  static std::array<double, 3> sizes_of(const device::Cost& cost);
  void add_deviation(const std::string& kernel, const device::Cost& cost, double time_ns);
  double correction(std::string_view kernel, const device::Cost& cost) const;

  const HardwareProfile profile_;
  std::vector<Deviation> deviations_;
};

}  // namespace loom::virtual_time
