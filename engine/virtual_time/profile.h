// HardwareProfile: the figures of one kind of device, of its host and of the links between such devices. Virtual time
// uses no other figures of hardware. Read from configs/devices/*.yaml (profile_file.h).
//
// Units    in the names; rates are per second, times ns.
// Ramps    work of x bytes (or of length x) runs at x / (x + half_rate) of its full rate: half_rate is where half the
//          rate is reached, 0 is no ramp.
// Devices  rank r of a world is device r; consecutive devices fill a node, consecutive nodes a supernode, and so on.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/virtual_time/fp8.h"

namespace loom::virtual_time {

enum class CommLibrary : std::uint8_t { kNccl, kHccl };

// The memory of the device that the communication library takes for each communicator: a group of at least two ranks
// that communicate with one another.
struct CommunicatorProfile {
  CommLibrary library = CommLibrary::kNccl;
  std::int64_t base_bytes = 0;    // whatever the size of its buffers
  std::int64_t buffers = 0;       // HCCL: one to send, one to receive; NCCL: one for each channel and connection
  std::int64_t buffer_bytes = 0;  // of each; HCCL_BUFFSIZE, NCCL_BUFFSIZE

  std::int64_t bytes() const { return base_bytes + buffers * buffer_bytes; }
};

struct MemoryProfile {
  std::int64_t capacity_bytes = 0;
  // Taken before the allocator sees the device: the driver's context.
  std::int64_t context_bytes = 0;
  // Beside it; none: communicators take no memory of the device.
  std::optional<CommunicatorProfile> communicator{};
  // The workspace that the library of matrix products allocates at its first call and never frees.
  std::int64_t matrix_workspace_bytes = 0;
  // The usual options of PyTorch's allocator there (device/allocator_settings.h); empty: its defaults.
  std::string alloc_conf{};
  double bandwidth_bytes_per_s = 0;  // nominal
  double streaming_efficiency = 1;   // share of it that long copies reach
  std::int64_t half_rate_bytes = 0;  // bytes read and written
};

// A piece of the result that one core computes at a time.
struct MatrixTile {
  std::int64_t m = 0;
  std::int64_t n = 0;
};

struct MatrixProfile {
  std::map<DType, double> peak_flops_per_s{};
  std::int64_t cores = 1;
  std::vector<MatrixTile> tiles{};  // the library takes the best for a shape
  double efficiency = 1;            // share of the peak that large products reach
  double half_rate_k = 0;
  double half_rate_tile = 0;     // of m n / (m + n) of a tile: how much a tile reuses its operands
  double wave_quantisation = 1;  // 1: a last wave of tiles costs as much as a full one; 0: only its share
  double power_limit_share = 0;  // share of the rate lost by products of far more than power_limit_flops
  double power_limit_flops = 0;
  // Of products in FP8 (fp8.h); 0: there are none.
  double fp8_flops_per_s = 0;  // nominal
  double fp8_efficiency = 0;   // share of it that large products reach
};

// Fused attention, forward or backward.
struct AttentionCurve {
  double efficiency = 1;  // share of the matrix peak at long sequences, large heads and many waves
  double half_rate_seq = 0;
  double half_rate_head_dim = 0;
  // In waves: tiles of all heads over the cores. Few heads are enough where sequences are long.
  double half_rate_waves = 0;
};

struct AttentionProfile {
  std::int64_t tile = 1;  // queries of one head that a core computes at a time
  AttentionCurve forward;
  AttentionCurve backward;
};

// A product whose time is known, of one kernel: layouts differ ("linear", "linear_dx", "linear_dw").
struct ProductPoint {
  std::string kernel;
  DType dtype = DType::kBF16;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  double time_ns = 0;
};

// Causal attention of as many queries as keys.
struct AttentionPoint {
  std::string kernel;  // "attention", "attention_grad"
  DType dtype = DType::kBF16;
  std::int64_t heads = 0;  // batch * heads
  std::int64_t seq = 0;
  std::int64_t head_dim = 0;
  double time_ns = 0;
};

// Measured kernels, without their launch, that correct the formulas in their neighbourhood (time_model.h). May be
// empty.
struct MeasuredProfile {
  double reach = 1;   // of a point, in doublings of each size
  double weight = 1;  // of a point at its own place, against 1 for the formula
  std::vector<ProductPoint> products{};
  std::vector<AttentionPoint> attention{};
};

struct VectorProfile {
  double flops_per_s = 0;
  // Kernels that reach another share of the memory's streaming rate than a copy does, by name; 1 = as a copy.
  std::map<std::string, double, std::less<>> relative_rate{};
};

// The host's cost of issuing work to the device, and a kernel's cost before it computes.
struct LaunchProfile {
  std::int64_t kernel_launch_ns = 0;  // on the device, each kernel
  std::int64_t dispatch_ns = 0;       // on the host, each kernel or copy, and each collective of the exchange stream
  std::int64_t library_ns = 0;        // on the host, more for each matrix product or attention: the library chooses
  std::int64_t collective_ns = 0;     // on the host, each other collective, the bookkeeping of its group included
  std::int64_t stream_wait_ns = 0;    // on the host, each wait of a stream for an event
};

enum class Topology : std::uint8_t {
  kSwitch,    // any peer at the device's whole bandwidth
  kFullMesh,  // a link of its own to each peer, an equal part of the device's bandwidth
};

enum class Algorithm : std::uint8_t {
  kRing,      // N - 1 steps
  kDoubling,  // ceil(log2 N) steps, the same bytes
  kDirect,    // every peer at once; full mesh only
};

// Links among the devices of one domain: a node, a supernode, the cluster.
struct LinkLevel {
  std::string name;
  std::int64_t devices = 0;  // of a domain; 0: all there are (the last level)
  Topology topology = Topology::kSwitch;
  Algorithm algorithm = Algorithm::kRing;
  std::int64_t latency_ns = 0;               // of a step
  double bandwidth_bytes_per_s = 0;          // of a device, one way, all its links of this level together
  double efficiency = 1;                     // share of it that long messages reach
  std::int64_t half_rate_message_bytes = 0;  // of the message between two devices in one step
  double compute_slowdown = 0;  // share of its rate that compute loses while a collective of its rank uses this level
};

struct LinkProfile {
  std::vector<LinkLevel> levels{};  // from the nearest to the farthest
  std::int64_t launch_ns = 0;       // of a collective, on the device
  // Pieces in which a collective over several levels is passed on: 1 = one level after the other.
  std::int64_t pipeline_chunks = 1;
  // Share of its rate that compute loses for each doubling of the nodes that wait for each other: the slowest decides.
  double loss_per_doubling = 0;
};

struct HostLinkProfile {
  std::int64_t latency_ns = 0;
  double h2d_pinned_bytes_per_s = 0;
  double d2h_pinned_bytes_per_s = 0;
  double h2d_pageable_bytes_per_s = 0;
  double d2h_pageable_bytes_per_s = 0;
};

// The host's share for one device.
struct HostProfile {
  double memory_bandwidth_bytes_per_s = 0;  // reached by the CPU's work on host tensors
  double flops_per_s = 0;
  std::int64_t kernel_ns = 0;              // each piece of work
  std::vector<int> numa_node_of_device{};  // of the devices of one host
  std::int64_t memory_bytes = 0;           // of one host, which its devices share; 0: not known
};

struct HardwareProfile {
  std::string name;
  // What its figures stand for (software.h).
  std::string architecture;
  std::string software;
  MemoryProfile memory;
  MatrixProfile matrix;
  AttentionProfile attention;
  MeasuredProfile measured{};
  VectorProfile vector;
  LaunchProfile launch;
  LinkProfile links;
  HostLinkProfile host_link;
  HostProfile host{};
  std::optional<Fp8Products> fp8{};  // no key of a file: what a plan multiplies in FP8

  // Devices of one host.
  std::int64_t devices_per_node() const { return static_cast<std::int64_t>(host.numa_node_of_device.size()); }
};

}  // namespace loom::virtual_time
