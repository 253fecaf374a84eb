// Promise: a device profile is read whole or refused with file, line, column, key, value and what is allowed; those
//          that are shipped are whole.
// World:   a small profile of ours, one line of it changed at a time.
#include "engine/virtual_time/profile_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <set>

#include "engine/core/error.h"
#include "engine/virtual_time/time_model.h"

namespace loom::virtual_time {
namespace {

using ::testing::ElementsAre;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

constexpr std::string_view kGood = R"(name: toy
source: made up

memory:
  source: made up
  capacity_bytes: 1000
  context_bytes: 10
  bandwidth_bytes_per_s: 1e9
  streaming_efficiency: 0.5
  half_rate_bytes: 20
  matrix_workspace_bytes: 30

matrix:
  source: made up
  peak_flops_per_s: {bf16: 4e9, fp16: 3e9, fp32: 2e9}
  cores: 4
  tiles:
    - {m: 16, n: 32}
  efficiency: 0.75
  half_rate_k: 64
  half_rate_tile: 2.5
  wave_quantisation: 1
  power_limit_share: 0.1
  power_limit_flops: 1e12

attention:
  source: made up
  tile: 128
  forward: {efficiency: 0.5, half_rate_seq: 1, half_rate_head_dim: 2, half_rate_waves: 3}
  backward: {efficiency: 0.4, half_rate_seq: 4, half_rate_head_dim: 5, half_rate_waves: 6}

vector:
  source: made up
  flops_per_s: 1e8
  relative_rate:
    cast: 0.5

launch:
  source: made up
  kernel_launch_ns: 1
  dispatch_ns: 2
  library_ns: 3
  collective_ns: 4
  stream_wait_ns: 5

links:
  source: made up
  levels:
    - name: node
      devices: 2
      topology: full_mesh
      algorithm: direct
      latency_ns: 6
      bandwidth_bytes_per_s: 7e9
      efficiency: 0.8
      half_rate_message_bytes: 9
      compute_slowdown: 0.1
    - name: cluster
      topology: switch
      algorithm: doubling
      latency_ns: 11
      bandwidth_bytes_per_s: 12e9
      efficiency: 0.9
      half_rate_message_bytes: 13
      compute_slowdown: 0
  launch_ns: 14
  pipeline_chunks: 15
  loss_per_doubling: 0.25

host_link:
  source: made up
  latency_ns: 16
  h2d_pinned_bytes_per_s: 17e6
  d2h_pinned_bytes_per_s: 18e6
  h2d_pageable_bytes_per_s: 19e6
  d2h_pageable_bytes_per_s: 20e6

host:
  source: made up
  memory_bandwidth_bytes_per_s: 21e6
  flops_per_s: 22e6
  kernel_ns: 23
  numa_node_of_device: [1, 0]

measured:
  source: made up
  reach: 0.5
  weight: 24
  products:
    - {kernel: linear, dtype: bf16, m: 1, n: 2, k: 3, time_ns: 4}
  attention:
    - {kernel: attention, dtype: fp16, heads: 5, seq: 6, head_dim: 7, time_ns: 8}
architecture: toy
software: pytorch-2.11
)";

std::string with(std::string_view from, std::string_view to) {
  std::string text(kGood);
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

// The profile with a communicator of these figures on its eighth line.
std::string with_communicator(std::string_view figures) {
  return with("  context_bytes: 10\n",
              fmt::format("  context_bytes: 10\n  communicator: {{source: ours, {}}}\n", figures));
}

TEST(ProfileFile, ACommunicatorTakesItsBaseAndItsBuffers) {
  EXPECT_FALSE(parse_profile(kGood, "toy.yaml").memory.communicator);
  const HardwareProfile p =
      parse_profile(with_communicator("library: hccl, base_bytes: 5, buffers: 3, buffer_bytes: 7"), "toy.yaml");
  ASSERT_TRUE(p.memory.communicator);
  EXPECT_EQ(p.memory.communicator->library, CommLibrary::kHccl);
  EXPECT_EQ(p.memory.communicator->base_bytes, 5);
  EXPECT_EQ(p.memory.communicator->buffers, 3);
  EXPECT_EQ(p.memory.communicator->buffer_bytes, 7);
  EXPECT_EQ(p.memory.communicator->bytes(), 5 + 3 * 7);
}

TEST(ProfileFile, ACommunicatorIsSmallerThanTheDevice) {
  EXPECT_THAT(
      [] {
        parse_profile(with_communicator("library: nccl, base_bytes: 0, buffers: 65536, buffer_bytes: 2"), "toy.yaml");
      },
      ThrowsMessage<ConfigError>(
          StrEq("toy.yaml:8:17: memory.communicator is 0 bytes and 65536 buffers of 2 bytes; use less than "
                "memory.capacity_bytes, 1000")));
  EXPECT_NO_THROW(
      parse_profile(with_communicator("library: nccl, base_bytes: 1, buffers: 499, buffer_bytes: 2"), "toy.yaml"));
  EXPECT_THROW(
      parse_profile(with_communicator("library: nccl, base_bytes: 2, buffers: 499, buffer_bytes: 2"), "toy.yaml"),
      ConfigError);
  EXPECT_THAT(
      [] { parse_profile(with_communicator("library: mpi, base_bytes: 1, buffers: 1, buffer_bytes: 1"), "toy.yaml"); },
      ThrowsMessage<ConfigError>(StrEq("toy.yaml:8:41: memory.communicator.library is mpi; use one of nccl, hccl")));
}

TEST(ProfileFile, ProductsInFp8AreOptional) {
  EXPECT_EQ(parse_profile(kGood, "toy.yaml").matrix.fp8_flops_per_s, 0);
  std::string text(kGood);
  text.replace(text.find("  cores: 4"), 10, "  cores: 4\n  fp8_flops_per_s: 8e9\n  fp8_efficiency: 0.5");
  const HardwareProfile p = parse_profile(text, "toy.yaml");
  EXPECT_EQ(p.matrix.fp8_flops_per_s, 8e9);
  EXPECT_EQ(p.matrix.fp8_efficiency, 0.5);
}

TEST(ProfileFile, EveryFigureArrives) {
  const HardwareProfile p = parse_profile(kGood, "toy.yaml");
  EXPECT_EQ(p.name, "toy");
  EXPECT_EQ(p.memory.capacity_bytes, 1000);
  EXPECT_EQ(p.memory.context_bytes, 10);
  EXPECT_EQ(p.memory.bandwidth_bytes_per_s, 1e9);
  EXPECT_EQ(p.memory.streaming_efficiency, 0.5);
  EXPECT_EQ(p.memory.half_rate_bytes, 20);
  EXPECT_EQ(p.memory.matrix_workspace_bytes, 30);
  EXPECT_EQ(p.matrix.peak_flops_per_s.at(DType::kF16), 3e9);
  EXPECT_FALSE(p.matrix.peak_flops_per_s.contains(DType::kF64));
  EXPECT_EQ(p.matrix.cores, 4);
  EXPECT_EQ(p.matrix.tiles.at(0).n, 32);
  EXPECT_EQ(p.matrix.half_rate_tile, 2.5);
  EXPECT_EQ(p.matrix.power_limit_flops, 1e12);
  EXPECT_EQ(p.attention.tile, 128);
  EXPECT_EQ(p.attention.forward.half_rate_waves, 3);
  EXPECT_EQ(p.attention.backward.half_rate_seq, 4);
  EXPECT_EQ(p.vector.relative_rate.at("cast"), 0.5);
  EXPECT_EQ(p.launch.kernel_launch_ns, 1);
  EXPECT_EQ(p.launch.dispatch_ns, 2);
  EXPECT_EQ(p.launch.library_ns, 3);
  EXPECT_EQ(p.launch.collective_ns, 4);
  EXPECT_EQ(p.launch.stream_wait_ns, 5);
  ASSERT_EQ(p.links.levels.size(), 2u);
  EXPECT_EQ(p.links.levels[0].devices, 2);
  EXPECT_EQ(p.links.levels[0].topology, Topology::kFullMesh);
  EXPECT_EQ(p.links.levels[0].algorithm, Algorithm::kDirect);
  EXPECT_EQ(p.links.levels[0].compute_slowdown, 0.1);
  EXPECT_EQ(p.links.levels[1].devices, 0);
  EXPECT_EQ(p.links.levels[1].algorithm, Algorithm::kDoubling);
  EXPECT_EQ(p.links.levels[1].half_rate_message_bytes, 13);
  EXPECT_EQ(p.links.launch_ns, 14);
  EXPECT_EQ(p.links.pipeline_chunks, 15);
  EXPECT_EQ(p.links.loss_per_doubling, 0.25);
  EXPECT_EQ(p.architecture, "toy");
  EXPECT_EQ(p.software, "pytorch-2.11");
  EXPECT_EQ(p.host_link.latency_ns, 16);
  EXPECT_EQ(p.host_link.d2h_pageable_bytes_per_s, 20e6);
  EXPECT_EQ(p.host.kernel_ns, 23);
  EXPECT_THAT(p.host.numa_node_of_device, ElementsAre(1, 0));
  EXPECT_EQ(p.devices_per_node(), 2);
  EXPECT_EQ(p.host.memory_bytes, 0);  // not known
  EXPECT_EQ(p.measured.weight, 24);
  EXPECT_EQ(p.measured.products.at(0).time_ns, 4);
  EXPECT_EQ(p.measured.attention.at(0).dtype, DType::kF16);
}

struct Bad {
  std::string_view from;
  std::string_view to;
  std::string_view message;
};

class BadProfile : public ::testing::TestWithParam<Bad> {};

TEST_P(BadProfile, IsRefused) {
  const std::string text = with(GetParam().from, GetParam().to);
  EXPECT_THAT([&] { parse_profile(text, "toy.yaml"); },
              ThrowsMessage<ConfigError>(StrEq(std::string(GetParam().message))));
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadProfile,
    ::testing::Values(
        // Keys
        Bad{"  cores: 4", "  core: 4", "toy.yaml:16:3: unknown key 'matrix.core'; did you mean cores?"},
        Bad{"  cores: 4", "  sockets_of_the_board: 4",
            "toy.yaml:16:3: unknown key 'matrix.sockets_of_the_board'; the keys here are source, peak_flops_per_s, "
            "cores, "
            "tiles, efficiency, half_rate_k, half_rate_tile, wave_quantisation, power_limit_share, power_limit_flops, "
            "fp8_flops_per_s, fp8_efficiency"},
        Bad{"  cores: 4", "  cores: 4\n  fp8_flops_per_s: 8e9",
            "toy.yaml:17:20: matrix.fp8_flops_per_s is 8e9; use both of fp8_flops_per_s and fp8_efficiency, or neither"},
        Bad{"host_link:", "hostlink:", "toy.yaml:70:1: unknown key 'hostlink'; did you mean host_link?"},
        Bad{"  cores: 4\n", "", "toy.yaml:13:1: matrix has no cores; every figure is required, there are no defaults"},
        Bad{"name: toy\n", "", "toy.yaml: the profile has no name; every figure is required, there are no defaults"},
        Bad{"launch:\n  source: made up\n", "launch:\n",
            "toy.yaml:38:1: launch has no source; every figure is required, there are no defaults"},
        Bad{"  cores: 4", "  cores: 4\n  cores: 5",
            "toy.yaml:17:3: matrix.cores is given again, first at line 16; keep one"},
        Bad{"      latency_ns: 6\n", "",
            "toy.yaml:49:7: links.levels[0] has no latency_ns; every figure is required, there are no defaults"},
        Bad{"    - name: cluster", "    - name: cluster\n      devices: 4",
            "toy.yaml:59:7: unknown key 'links.levels[1].devices'; the keys here are name, topology, algorithm, "
            "latency_ns, bandwidth_bytes_per_s, efficiency, half_rate_message_bytes, compute_slowdown"},
        // Types
        Bad{"capacity_bytes: 1000", "capacity_bytes: 64GiB",
            "toy.yaml:6:19: memory.capacity_bytes is 64GiB; use a whole number of at least 1"},
        Bad{"capacity_bytes: 1000", "capacity_bytes: \"1000\"",
            "toy.yaml:6:19: memory.capacity_bytes is \"1000\"; use a whole number of at least 1"},
        Bad{"capacity_bytes: 1000",
            "capacity_bytes:", "toy.yaml:6:3: memory.capacity_bytes is empty; use a whole number of at least 1"},
        Bad{"capacity_bytes: 1000", "capacity_bytes: [1000]",
            "toy.yaml:6:19: memory.capacity_bytes is a list; use a whole number of at least 1"},
        Bad{"capacity_bytes: 1000", "capacity_bytes: 1000.5",
            "toy.yaml:6:19: memory.capacity_bytes is 1000.5; use a whole number of at least 1"},
        Bad{"{m: 16, n: 32}", "16", "toy.yaml:18:7: matrix.tiles[0] is 16; use a mapping of key: value lines"},
        Bad{"  tiles:\n    - {m: 16, n: 32}", "  tiles: []",
            "toy.yaml:17:10: matrix.tiles is a list; use a list of tiles, as in - {m: 128, n: 128}"},
        Bad{"    cast: 0.5", "    - cast",
            "toy.yaml:36:5: vector.relative_rate is a list; use a mapping of kernel names and factors"},
        Bad{"source: made up\n\nmemory", "source: [made, up]\n\nmemory", "toy.yaml:2:9: source is a list; use a text"},
        // Figures that cannot be
        Bad{"bandwidth_bytes_per_s: 1e9", "bandwidth_bytes_per_s: 0",
            "toy.yaml:8:26: memory.bandwidth_bytes_per_s is 0; use a rate from 1e6 to 1e21 a second"},
        Bad{"bandwidth_bytes_per_s: 1e9", "bandwidth_bytes_per_s: -1e9",
            "toy.yaml:8:26: memory.bandwidth_bytes_per_s is -1e9; use a rate from 1e6 to 1e21 a second"},
        Bad{"bandwidth_bytes_per_s: 1e9", "bandwidth_bytes_per_s: inf",
            "toy.yaml:8:26: memory.bandwidth_bytes_per_s is inf; use a rate from 1e6 to 1e21 a second"},
        Bad{"streaming_efficiency: 0.5", "streaming_efficiency: 85",
            "toy.yaml:9:25: memory.streaming_efficiency is 85; use a share from 0.001 to 1"},
        Bad{"flops_per_s: 1e8", "flops_per_s: 0.5",
            "toy.yaml:34:16: vector.flops_per_s is 0.5; use a rate from 1e6 to 1e21 a second"},
        Bad{"h2d_pinned_bytes_per_s: 17e6", "h2d_pinned_bytes_per_s: 1e-300",
            "toy.yaml:73:27: host_link.h2d_pinned_bytes_per_s is 1e-300; use a rate from 1e6 to 1e21 a second"},
        Bad{"efficiency: 0.75", "efficiency: 1e-300",
            "toy.yaml:19:15: matrix.efficiency is 1e-300; use a share from 0.001 to 1"},
        Bad{"latency_ns: 16", "latency_ns: 9007199254740992",
            "toy.yaml:72:15: host_link.latency_ns is 9007199254740992; use a whole number of ns from 0 to 1e9"},
        Bad{"reach: 0.5", "reach: 1e-300", "toy.yaml:87:10: measured.reach is 1e-300; use a number from 0.001 to 1e9"},
        Bad{"flops_per_s: 1e8", "flops_per_s: .nan",
            "toy.yaml:34:16: vector.flops_per_s is .nan; use a rate from 1e6 to 1e21 a second"},
        Bad{"name: toy", "name: \"a\\nfits\"",
            "toy.yaml:1:7: name is \"a\\nfits\"; use at most 64 bytes without control characters"},
        Bad{"context_bytes: 10", "context_bytes: 1000",
            "toy.yaml:7:18: memory.context_bytes is 1000; use less than memory.capacity_bytes, 1000"},
        Bad{"wave_quantisation: 1", "wave_quantisation: 1.5",
            "toy.yaml:22:22: matrix.wave_quantisation is 1.5; use a share from 0 to 1"},
        Bad{"power_limit_share: 0.1", "power_limit_share: 1",
            "toy.yaml:23:22: matrix.power_limit_share is 1; use a share from 0 to 0.99"},
        Bad{"bf16: 4e9, ", "",
            "toy.yaml:15:3: matrix.peak_flops_per_s has no bf16; every figure is required, there are no "
            "defaults"},
        Bad{"half_rate_seq: 1,", "half_rate_seq: -1,",
            "toy.yaml:29:45: attention.forward.half_rate_seq is -1; use a number from 0 to 1e18"},
        Bad{"    cast: 0.5", "    cast: 0",
            "toy.yaml:36:11: vector.relative_rate.cast is 0; use a factor from 0.001 to 10"},
        Bad{"pipeline_chunks: 15", "pipeline_chunks: 0",
            "toy.yaml:67:20: links.pipeline_chunks is 0; use a whole number of at least 1"},
        // Links
        Bad{"topology: full_mesh", "topology: mesh",
            "toy.yaml:51:17: links.levels[0].topology is mesh; use one of switch, full_mesh"},
        Bad{"algorithm: direct", "algorithm: tree",
            "toy.yaml:52:18: links.levels[0].algorithm is tree; use one of ring, doubling, direct"},
        Bad{"topology: full_mesh", "topology: switch",
            "toy.yaml:52:18: links.levels[0].algorithm is direct; use ring or doubling; direct needs topology: "
            "full_mesh"},
        Bad{"      devices: 2", "      devices: 1",
            "toy.yaml:51:17: links.levels[0].topology is full_mesh; use switch, or at least 2 devices a domain: a full "
            "mesh has as many links as peers"},
        Bad{"topology: switch", "topology: full_mesh",
            "toy.yaml:59:17: links.levels[1].topology is full_mesh; use switch, or at least 2 devices a domain: a full "
            "mesh has as many links as peers"},
        Bad{"    - name: cluster\n",
            "    - name: pod\n      devices: 3\n      topology: switch\n      algorithm: ring\n"
            "      latency_ns: 1\n      bandwidth_bytes_per_s: 1e6\n      efficiency: 1\n"
            "      half_rate_message_bytes: 0\n      compute_slowdown: 0\n    - name: cluster\n",
            "toy.yaml:59:16: links.levels[1].devices is 3; use a multiple of the 2 devices of node, the level before"},
        Bad{"numa_node_of_device: [1, 0]", "numa_node_of_device: [1, 0]\n  memory_bytes: 0",
            "toy.yaml:84:17: host.memory_bytes is 0; use a whole number of at least 1"},
        Bad{"numa_node_of_device: [1, 0]", "numa_node_of_device: [1, 0, 1]",
            "toy.yaml:83:24: host.numa_node_of_device has 3 entries; use one for each device of a host, as many as a "
            "level of links joins: 2"},
        Bad{"numa_node_of_device: [1, 0]", "numa_node_of_device: [1, a]",
            "toy.yaml:83:28: host.numa_node_of_device[1] is a; use the number of a NUMA node, 0 to 1023"},
        // Measured kernels
        Bad{"dtype: bf16, m: 1", "dtype: fp8, m: 1",
            "toy.yaml:90:31: measured.products[0].dtype is fp8; use bf16, fp16, fp32 or fp64"},
        Bad{"dtype: bf16, m: 1", "dtype: fp64, m: 1",
            "toy.yaml:90:7: measured.products[0] is of fp64, and matrix.peak_flops_per_s has none; add it there"},
        Bad{"time_ns: 4", "time_ns: 0",
            "toy.yaml:90:64: measured.products[0].time_ns is 0; use a time above 0 and at most 1e12 ns"},
        // YAML
        Bad{"memory:", "memory: {",
            "toy.yaml:6:17: not readable as YAML (a { is not closed with }); check indentation, "
            "colons and quotes here and in the line above"}));

TEST(ProfileFile, AFileThatIsNoMappingIsRefused) {
  EXPECT_THAT([] { parse_profile("", "toy.yaml"); },
              ThrowsMessage<ConfigError>(
                  StrEq("toy.yaml: the file has no keys; begin with a copy of configs/devices/h200.yaml")));
  EXPECT_THAT([] { parse_profile("- a\n", "toy.yaml"); },
              ThrowsMessage<ConfigError>(StrEq("toy.yaml:1:1: the file is a list; write key: value lines")));
  EXPECT_THAT(
      [] { load_profile("nowhere/toy.yaml"); },
      ThrowsMessage<ConfigError>(StrEq("nowhere/toy.yaml: No such file or directory; give the path of an existing "
                                       "device profile, as configs/devices/h200.yaml")));
  EXPECT_THAT([] { load_profile("/"); },
              ThrowsMessage<ConfigError>(StrEq("/: is a folder; give the path of the YAML file itself")));
}

const std::filesystem::path kDevices = std::filesystem::path(LOOM_SOURCE_DIR) / "configs/devices";

TEST(ShippedProfiles, CarryTheNamesOfTheirFiles) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kDevices)) {
    const HardwareProfile profile = load_profile(entry.path());
    EXPECT_EQ(profile.name, entry.path().stem().string());
    names.insert(profile.name);
  }
  EXPECT_THAT(names, ElementsAre("a100-40g", "a100-80g", "ascend-910b", "ascend-910b2", "ascend-910b4", "ascend-910c",
                                 "b200", "cpu", "gb200", "h100", "h100-96g", "h200", "l40s", "mi300x"));
}

// Bus bandwidth of a large all-gather over one node: what nccl-tests reports on H100, H200 and A100 servers.
TEST(ShippedProfiles, GatherInsideANodeAsMeasured) {
  const auto bus_rate = [](const char* name) {
    const TimeModel model(load_profile(kDevices / (std::string(name) + ".yaml")));
    const std::vector<int> group{0, 1, 2, 3, 4, 5, 6, 7};
    const std::int64_t bytes = std::int64_t{8} << 30;
    const std::int64_t time =
        model.collective(device::CollectiveKind::kAllGather, bytes, model.shape_of(group)).time_ns;
    return 7.0 / 8 * static_cast<double>(bytes) / static_cast<double>(time);
  };
  EXPECT_NEAR(bus_rate("h200"), 361, 0.03 * 361);
  EXPECT_NEAR(bus_rate("h100"), 361, 0.03 * 361);
  EXPECT_NEAR(bus_rate("a100-80g"), 235, 0.03 * 235);
}

}  // namespace
}  // namespace loom::virtual_time
