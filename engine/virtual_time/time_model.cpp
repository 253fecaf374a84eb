#include "engine/virtual_time/time_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/core/error.h"

namespace loom::virtual_time {
namespace {

constexpr double kNsPerS = 1e9;

double share_of_rate(double size, double half) { return half <= 0 ? 1 : size / (size + half); }

double ceil_div(double a, double b) { return std::ceil(a / b); }

// Thirteen days, for one kernel or one collective: thousands of them stay within 64 bits.
constexpr double kLongestNs = 1LL << 50;

std::int64_t rounded(double ns) {
  if (!(ns < kLongestNs)) {
    raise<DeviceError>(
        "one kernel or collective takes {:.3g} s of virtual time, above the {:.3g} s that can be counted; use smaller "
        "sizes, or a device profile with higher rates",
        ns / kNsPerS, kLongestNs / kNsPerS);
  }
  return std::llround(ns);
}

double square(double x) { return x * x; }

// The kernels of attention as profiles list them.
device::WorkKind attention_work(std::string_view kernel) {
  return kernel == "attention_grad" ? device::WorkKind::kAttentionBackward : device::WorkKind::kAttention;
}

}  // namespace

TimeModel::TimeModel(HardwareProfile profile) : profile_(std::move(profile)) {
  require(!profile_.links.levels.empty() && !profile_.matrix.tiles.empty() && profile_.matrix.cores > 0,
          "profile '{}' has no links, no tiles or no cores", profile_.name);
  for (const ProductPoint& p : profile_.measured.products) {
    const double flops = 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
    add_deviation(p.kernel,
                  {.flops = flops, .unit = device::Unit::kMatrix, .dtype = p.dtype, .m = p.m, .n = p.n, .k = p.k},
                  p.time_ns);
  }
  for (const AttentionPoint& p : profile_.measured.attention) {
    const double pairs = 0.5 * static_cast<double>(p.heads) * static_cast<double>(p.seq) * static_cast<double>(p.seq);
    const device::WorkKind work = attention_work(p.kernel);
    const double flops =
        (work == device::WorkKind::kAttentionBackward ? 10.0 : 4.0) * pairs * static_cast<double>(p.head_dim);
    add_deviation(p.kernel,
                  {.flops = flops,
                   .unit = device::Unit::kAttention,
                   .dtype = p.dtype,
                   .batch = p.heads,
                   .m = p.seq,
                   .n = p.seq,
                   .k = p.head_dim,
                   .work = work},
                  p.time_ns);
  }
}

std::array<double, 3> TimeModel::sizes_of(const device::Cost& cost) {
  const bool attention = cost.unit == device::Unit::kAttention;
  return {std::log2(static_cast<double>(attention ? cost.batch : cost.m)), std::log2(static_cast<double>(cost.n)),
          std::log2(static_cast<double>(cost.k))};
}

void TimeModel::add_deviation(const std::string& kernel, const device::Cost& cost, double time_ns) {
  deviations_.push_back({kernel, cost.dtype, sizes_of(cost), std::log(time_ns / formula_ns(cost))});
}

double TimeModel::correction(std::string_view kernel, const device::Cost& cost) const {
  if (deviations_.empty() || (cost.unit == device::Unit::kMatrix && cost.batch > 1)) return 1;
  const std::array<double, 3> sizes = sizes_of(cost);
  const double scale = -0.5 / square(profile_.measured.reach);
  double weights = 1 / profile_.measured.weight;
  double sum = 0;
  for (const Deviation& point : deviations_) {
    if (point.dtype != cost.dtype || point.kernel != kernel) continue;
    double distance = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) distance += square(sizes[i] - point.sizes[i]);
    const double weight = std::exp(scale * distance);
    weights += weight;
    sum += weight * point.log_ratio;
  }
  return std::exp(sum / weights);
}

double TimeModel::formula_ns(const device::Cost& cost) const {
  return cost.unit == device::Unit::kMatrix ? matrix_ns(cost) : attention_ns(cost);
}

std::int64_t TimeModel::work_ns(std::string_view kernel, const device::Cost& cost) const {
  const auto launch = static_cast<double>(profile_.launch.kernel_launch_ns);
  const double passes = stream_ns(kernel, static_cast<double>(cost.read_bytes + cost.written_bytes));
  switch (cost.unit) {
    case device::Unit::kMatrix:
    case device::Unit::kAttention:
      if (cost.flops <= 0) return rounded(launch + passes);
      if (profile_.fp8 && profile_.fp8->multiplies(kernel, cost)) return rounded(launch + fp8_ns(kernel, cost));
      return rounded(launch + std::max(formula_ns(cost) * correction(kernel, cost), passes));
    case device::Unit::kHostLink:
      return rounded(host_link_ns(cost));
    case device::Unit::kVector:
    case device::Unit::kCopy:
    case device::Unit::kLink:
      break;  // a collective of one rank is a pass over its own bytes
  }
  return rounded(launch + std::max(cost.flops / profile_.vector.flops_per_s * kNsPerS, passes));
}

std::int64_t TimeModel::dispatch_ns(const LaunchProfile& launch, const device::Cost& cost) {
  const bool library = cost.unit == device::Unit::kMatrix || cost.unit == device::Unit::kAttention;
  return launch.dispatch_ns + (library ? launch.library_ns : 0);
}

std::int64_t TimeModel::host_work_ns(const device::Cost& cost) const {
  const HostProfile& host = profile_.host;
  const double bytes = static_cast<double>(cost.read_bytes + cost.written_bytes);
  return host.kernel_ns +
         rounded(kNsPerS * std::max(bytes / host.memory_bandwidth_bytes_per_s, cost.flops / host.flops_per_s));
}

double TimeModel::stream_ns(std::string_view kernel, double bytes) const {
  if (bytes <= 0) return 0;
  const auto found = profile_.vector.relative_rate.find(kernel);
  const double relative = found == profile_.vector.relative_rate.end() ? 1 : found->second;
  const MemoryProfile& memory = profile_.memory;
  const double rate = memory.bandwidth_bytes_per_s * memory.streaming_efficiency * relative;
  return kNsPerS * bytes / (rate * share_of_rate(bytes, static_cast<double>(memory.half_rate_bytes)));
}

double TimeModel::peak(DType dtype) const {
  const auto found = profile_.matrix.peak_flops_per_s.find(dtype);
  if (found == profile_.matrix.peak_flops_per_s.end()) {
    raise<DeviceError>(
        "profile '{}' has no peak_flops_per_s for {}; add it to the profile's matrix section, or compute "
        "in a type that it has",
        profile_.name, name(dtype));
  }
  return found->second;
}

double TimeModel::matrix_efficiency(std::int64_t m, std::int64_t n, std::int64_t k, double flops,
                                    std::int64_t batch) const {
  const MatrixProfile& matrix = profile_.matrix;
  const auto cores = static_cast<double>(matrix.cores);
  double best = 0;
  for (const MatrixTile& tile : matrix.tiles) {
    const auto tile_m = static_cast<double>(tile.m);
    const auto tile_n = static_cast<double>(tile.n);
    const double tiles_of_one = ceil_div(static_cast<double>(m), tile_m) * ceil_div(static_cast<double>(n), tile_n);
    const double tiles = static_cast<double>(batch) * tiles_of_one;
    const double filled = static_cast<double>(m) * static_cast<double>(n) / (tiles_of_one * tile_m * tile_n);
    const double waves = tiles / cores;
    const double whole_waves = waves / std::ceil(waves);
    const double quantised =
        matrix.wave_quantisation * whole_waves + (1 - matrix.wave_quantisation) * std::min(waves, 1.0);
    best =
        std::max(best, filled * quantised * share_of_rate(tile_m * tile_n / (tile_m + tile_n), matrix.half_rate_tile));
  }
  const double power = 1 - matrix.power_limit_share * (1 - share_of_rate(matrix.power_limit_flops, flops));
  return matrix.efficiency * best * share_of_rate(static_cast<double>(k), matrix.half_rate_k) * power;
}

double TimeModel::matrix_ns(const device::Cost& cost) const {
  const std::int64_t batch = std::max<std::int64_t>(cost.batch, 1);
  const double one = cost.flops / static_cast<double>(batch);
  const double efficiency = matrix_efficiency(cost.m, cost.n, cost.k, one, batch);
  return kNsPerS * cost.flops / (peak(cost.dtype) * efficiency);
}

double TimeModel::fp8_ns(std::string_view kernel, const device::Cost& cost) const {
  const MatrixProfile& matrix = profile_.matrix;
  const double faster = matrix.fp8_flops_per_s * matrix.fp8_efficiency / (peak(cost.dtype) * matrix.efficiency);
  const double product = matrix_ns(cost) * correction(kernel, cost) / faster;
  const double casts = profile_.fp8->cast_bytes(kernel, cost);
  const double launch = casts > 0 ? static_cast<double>(profile_.launch.kernel_launch_ns) : 0;
  return product + stream_ns("cast", casts) + launch;
}

double TimeModel::attention_ns(const device::Cost& cost) const {
  const bool backward = cost.work == device::WorkKind::kAttentionBackward;
  const AttentionCurve& curve = backward ? profile_.attention.backward : profile_.attention.forward;
  const double tiles = static_cast<double>(cost.batch) *
                       ceil_div(static_cast<double>(cost.m), static_cast<double>(profile_.attention.tile));
  const double waves = tiles / static_cast<double>(profile_.matrix.cores);
  const double efficiency = curve.efficiency * share_of_rate(static_cast<double>(cost.n), curve.half_rate_seq) *
                            share_of_rate(static_cast<double>(cost.k), curve.half_rate_head_dim) *
                            share_of_rate(waves, curve.half_rate_waves);
  return kNsPerS * cost.flops / (peak(cost.dtype) * efficiency);
}

double TimeModel::host_link_ns(const device::Cost& cost) const {
  const HostLinkProfile& link = profile_.host_link;
  const bool to_host = cost.work == device::WorkKind::kD2H;
  const double rate = cost.pinned ? (to_host ? link.d2h_pinned_bytes_per_s : link.h2d_pinned_bytes_per_s)
                                  : (to_host ? link.d2h_pageable_bytes_per_s : link.h2d_pageable_bytes_per_s);
  return static_cast<double>(link.latency_ns) + kNsPerS * static_cast<double>(cost.read_bytes) / rate;
}

GroupShape TimeModel::shape_of(std::span<const int> ranks) const {
  GroupShape shape;
  // Inner domains of the level below, each once; at first the ranks themselves.
  std::vector<std::int64_t> inner(ranks.begin(), ranks.end());
  std::int64_t inner_devices = 1;
  for (const LinkLevel& level : profile_.links.levels) {
    const std::int64_t fan = level.devices == 0 ? 0 : level.devices / inner_devices;
    std::vector<std::int64_t> outer;
    std::int64_t most = 0;
    std::int64_t here = 0;
    for (const std::int64_t domain : inner) {
      const std::int64_t parent = fan == 0 ? 0 : domain / fan;
      if (outer.empty() || outer.back() != parent) {
        outer.push_back(parent);
        here = 0;
      }
      most = std::max(most, ++here);
    }
    shape.members.push_back(most);
    inner = std::move(outer);
    inner_devices = level.devices;
  }
  return shape;
}

std::int64_t TimeModel::carried_bytes(device::CollectiveKind kind, std::int64_t bytes, std::string_view subject) const {
  if (!profile_.fp8 || kind != device::CollectiveKind::kAllGather) return bytes;
  const auto share = profile_.fp8->gathered.find(subject);
  if (share == profile_.fp8->gathered.end()) return bytes;
  return std::llround(static_cast<double>(bytes) * share->second);
}

namespace {

// The inputs of a leg's formulas (time_model.h).
struct Leg {
  double members;  // n
  double bytes;    // S
  double latency_ns;
  double half_bytes;
  double bytes_per_ns;  // of a member, all its usable links together

  double move_ns(double moved, double message) const {
    return moved / (bytes_per_ns * share_of_rate(message, half_bytes));
  }
  double pass_ns(double steps) const {
    const double message = bytes / members;
    return steps * latency_ns + move_ns((members - 1) * message, message);
  }
  double message_ns() const { return latency_ns + move_ns(bytes, bytes); }
};

double leg_ns(Algorithm algorithm, const Leg& leg, bool all_reduce) {
  const double passes = all_reduce ? 2 : 1;
  const double doublings = std::ceil(std::log2(leg.members));
  switch (algorithm) {
    case Algorithm::kDirect:
      return passes * leg.pass_ns(1);
    case Algorithm::kDoubling:
      return passes * leg.pass_ns(doublings);
    case Algorithm::kRing:
      break;
  }
  const double ring = passes * leg.pass_ns(leg.members - 1);
  if (!all_reduce) return ring;
  return std::min(ring, passes * doublings * (leg.latency_ns + leg.move_ns(leg.bytes, leg.bytes)));
}

// The bytes of an all-to-all whose other end is inside a level: those beyond it go over the outer levels at once.
double within_level(double bytes, const GroupShape& shape, std::size_t level) {
  for (std::size_t outer = level + 1; outer < shape.members.size(); ++outer) {
    bytes /= static_cast<double>(shape.members[outer]);
  }
  return bytes;
}

}  // namespace

CollectiveTime TimeModel::collective(device::CollectiveKind kind, std::int64_t bytes, const GroupShape& shape) const {
  const bool all_reduce = kind == device::CollectiveKind::kAllReduce;
  const bool all_to_all = kind == device::CollectiveKind::kAllToAll;
  const bool to_one = kind == device::CollectiveKind::kSendRecv || kind == device::CollectiveKind::kMessage;
  const LinkProfile& links = profile_.links;
  CollectiveTime result;
  double shared = static_cast<double>(bytes);  // moved by the leg
  double longest = 0;
  double sum = 0;
  std::int64_t inner_devices = 1;
  for (std::size_t l = 0; l < links.levels.size(); ++l) {
    const LinkLevel& level = links.levels[l];
    const auto members = static_cast<double>(shape.members[l]);
    const std::int64_t domain = level.devices / inner_devices;
    inner_devices = level.devices;
    if (members <= 1) continue;
    if (all_to_all) shared = within_level(static_cast<double>(bytes), shape, l);
    const double peers = to_one ? 1 : members - 1;
    const double usable = level.topology == Topology::kFullMesh ? peers / static_cast<double>(domain - 1) : 1.0;
    const Leg leg{members, shared, static_cast<double>(level.latency_ns),
                  static_cast<double>(level.half_rate_message_bytes),
                  level.bandwidth_bytes_per_s * level.efficiency * usable / kNsPerS};
    const double time = to_one ? leg.message_ns() : leg_ns(level.algorithm, leg, all_reduce);
    const double received = to_one ? shared : (all_reduce ? 2 : 1) * shared * (members - 1) / members;
    result.legs.push_back({static_cast<std::int64_t>(l), shape.members[l], shared, received, time});
    result.levels |= 1u << l;
    result.compute_slowdown = std::max(result.compute_slowdown, level.compute_slowdown);
    longest = std::max(longest, time);
    sum += time;
    if (!to_one) shared /= members;
  }
  if (result.legs.empty()) return result;
  const double behind = all_to_all || to_one ? 0 : (sum - longest) / static_cast<double>(links.pipeline_chunks);
  result.time_ns = links.launch_ns + rounded(longest + behind);
  return result;
}

}  // namespace loom::virtual_time
