#include "engine/virtual_time/profile_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <map>
#include <span>

#include "engine/config/document.h"
#include "engine/config/section.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/device/allocator_settings.h"

namespace loom::virtual_time {
namespace {

using config::Section;
using config::Value;

// The allowed values of a number.
struct Range {
  double least = 0;
  bool may_be_least = true;
  double most = std::numeric_limits<double>::infinity();
  bool whole = false;
  std::string_view words;

  bool holds(double value) const {
    return std::isfinite(value) && value <= most && (may_be_least ? value >= least : value > least) &&
           (!whole || value == std::floor(value));
  }
};

// Bytes or operations a second, and durations: what machines have, with room to both sides. Times stay within 64 bits.
constexpr Range kRate{.least = 1e6, .most = 1e21, .words = "a rate from 1e6 to 1e21 a second"};
constexpr Range kTime{.may_be_least = false, .most = 1e12, .words = "a time above 0 and at most 1e12 ns"};
constexpr Range kWholeTime{.most = 1e9, .whole = true, .words = "a whole number of ns from 0 to 1e9"};
constexpr Range kPositive{.least = 0.001, .most = 1e9, .words = "a number from 0.001 to 1e9"};
constexpr Range kSize{.most = 1e18, .words = "a number from 0 to 1e18"};
constexpr Range kShare{.least = 0.001, .most = 1, .words = "a share from 0.001 to 1"};
constexpr Range kPart{.most = 1, .words = "a share from 0 to 1"};
constexpr Range kLoss{.most = 0.99, .words = "a share from 0 to 0.99"};
constexpr Range kRelative{.least = 0.001, .most = 10, .words = "a factor from 0.001 to 10"};
// Whole numbers that a double holds exactly.
constexpr Range kWhole{.most = 9007199254740992, .whole = true, .words = "a whole number of at least 0"};
constexpr Range kBuffers{.least = 1, .most = 65536, .whole = true, .words = "a whole number from 1 to 65536"};
constexpr Range kCount{.least = 1, .most = 9007199254740992, .whole = true, .words = "a whole number of at least 1"};

double number(const Value& value, const Range& range) {
  const auto number = value.number();
  if (!number || !range.holds(*number)) value.refuse(range.words);
  return *number;
}

std::int64_t whole(const Value& value, const Range& range) { return static_cast<std::int64_t>(number(value, range)); }

std::string text(const Value& value) {
  if (!value.is_scalar() || value.scalar().empty()) value.refuse("a text");
  return value.scalar();
}

// A text that plans and pages print.
std::string shown_name(const Value& value) {
  const std::string name = text(value);
  if (name.size() > 64 || escaped(name) != name) value.refuse("at most 64 bytes without control characters");
  return name;
}

// One of `words`, by its position.
std::size_t one_of(const Value& value, std::span<const std::string_view> words) {
  const auto found = value.is_scalar() ? std::ranges::find(words, value.scalar()) : words.end();
  if (found == words.end()) value.refuse(fmt::format("one of {}", fmt::join(words, ", ")));
  return static_cast<std::size_t>(found - words.begin());
}

const std::vector<Value>& list(const Value& value, std::string_view of) {
  if (!value.is_list() || value.items().empty()) value.refuse(fmt::format("a list of {}", of));
  return value.items();
}

using Keys = std::vector<std::string_view>;

// A mapping whose keys are known.
Section section(const Value& value, const Keys& required, const Keys& optional = {}) {
  return Section(value, {.required = required,
                         .optional = optional,
                         .document = "the profile",
                         .advice = "every figure is required, there are no defaults"});
}

DType floating(const Value& value) {
  const auto dtype = parse_dtype(text(value));
  if (!dtype || !is_floating(*dtype)) value.refuse("bf16, fp16, fp32 or fp64");
  return *dtype;
}

CommunicatorProfile read_communicator(const Value& value, std::int64_t capacity_bytes) {
  static constexpr std::array<std::string_view, 2> kLibraries{"nccl", "hccl"};
  const Keys keys{"source", "library", "base_bytes", "buffers", "buffer_bytes"};
  const Section s = section(value, keys);
  text(s["source"]);
  const CommunicatorProfile communicator{.library = static_cast<CommLibrary>(one_of(s["library"], kLibraries)),
                                         .base_bytes = whole(s["base_bytes"], kWhole),
                                         .buffers = whole(s["buffers"], kBuffers),
                                         .buffer_bytes = whole(s["buffer_bytes"], kCount)};
  const std::int64_t most = capacity_bytes - 1 - communicator.base_bytes;
  if (communicator.base_bytes >= capacity_bytes || communicator.buffers > most / communicator.buffer_bytes) {
    config_error("{}: {} is {} bytes and {} buffers of {} bytes; use less than memory.capacity_bytes, {}",
                 value.where(), value.path(), communicator.base_bytes, communicator.buffers, communicator.buffer_bytes,
                 capacity_bytes);
  }
  return communicator;
}

MemoryProfile read_memory(const Value& value) {
  const Keys keys{"source",
                  "capacity_bytes",
                  "context_bytes",
                  "matrix_workspace_bytes",
                  "bandwidth_bytes_per_s",
                  "streaming_efficiency",
                  "half_rate_bytes"};
  const Keys more{"alloc_conf", "communicator"};
  const Section s = section(value, keys, more);
  text(s["source"]);
  MemoryProfile memory{.capacity_bytes = whole(s["capacity_bytes"], kCount),
                       .context_bytes = whole(s["context_bytes"], kWhole),
                       .communicator = {},
                       .matrix_workspace_bytes = whole(s["matrix_workspace_bytes"], kWhole),
                       .alloc_conf = {},
                       .bandwidth_bytes_per_s = number(s["bandwidth_bytes_per_s"], kRate),
                       .streaming_efficiency = number(s["streaming_efficiency"], kShare),
                       .half_rate_bytes = whole(s["half_rate_bytes"], kWhole)};
  if (const Value* conf = s.given("alloc_conf")) {
    memory.alloc_conf = text(*conf);
    device::read_allocator_settings(memory.alloc_conf, fmt::format("{}: {}", conf->where(), conf->path()));
  }
  if (const Value* communicator = s.given("communicator")) {
    memory.communicator = read_communicator(*communicator, memory.capacity_bytes);
  }
  if (memory.context_bytes >= memory.capacity_bytes) {
    config_error("{}: {} is {}; use less than memory.capacity_bytes, {}", s["context_bytes"].where(),
                 s["context_bytes"].path(), memory.context_bytes, memory.capacity_bytes);
  }
  return memory;
}

std::map<DType, double> read_peaks(const Value& value) {
  const Keys types{"bf16", "fp16", "fp32"};
  const Keys more{"fp64"};
  const Section s = section(value, types, more);
  std::map<DType, double> peaks;
  for (const Keys* keys : {&types, &more}) {
    for (const std::string_view type : *keys) {
      if (const Value* peak = s.given(type)) peaks[*parse_dtype(type)] = number(*peak, kRate);
    }
  }
  return peaks;
}

MatrixTile read_tile(const Value& value) {
  const Keys keys{"m", "n"};
  const Section s = section(value, keys);
  return {whole(s["m"], kCount), whole(s["n"], kCount)};
}

MatrixProfile read_matrix(const Value& value) {
  const Keys keys{"source",
                  "peak_flops_per_s",
                  "cores",
                  "tiles",
                  "efficiency",
                  "half_rate_k",
                  "half_rate_tile",
                  "wave_quantisation",
                  "power_limit_share",
                  "power_limit_flops"};
  const Keys of_fp8{"fp8_flops_per_s", "fp8_efficiency"};
  const Section s = section(value, keys, of_fp8);
  text(s["source"]);
  MatrixProfile matrix{.peak_flops_per_s = read_peaks(s["peak_flops_per_s"]),
                       .cores = whole(s["cores"], kCount),
                       .efficiency = number(s["efficiency"], kShare),
                       .half_rate_k = number(s["half_rate_k"], kSize),
                       .half_rate_tile = number(s["half_rate_tile"], kSize),
                       .wave_quantisation = number(s["wave_quantisation"], kPart),
                       .power_limit_share = number(s["power_limit_share"], kLoss),
                       .power_limit_flops = number(s["power_limit_flops"], kSize)};
  for (const Value& tile : list(s["tiles"], "tiles, as in - {m: 128, n: 128}")) matrix.tiles.push_back(read_tile(tile));
  const Value *peak = s.given("fp8_flops_per_s"), *efficiency = s.given("fp8_efficiency");
  if ((peak == nullptr) != (efficiency == nullptr)) {
    (peak == nullptr ? efficiency : peak)->refuse("both of fp8_flops_per_s and fp8_efficiency, or neither");
  }
  if (peak != nullptr) {
    matrix.fp8_flops_per_s = number(*peak, kRate);
    matrix.fp8_efficiency = number(*efficiency, kShare);
  }
  return matrix;
}

AttentionCurve read_curve(const Value& value) {
  const Keys keys{"efficiency", "half_rate_seq", "half_rate_head_dim", "half_rate_waves"};
  const Section s = section(value, keys);
  return {.efficiency = number(s["efficiency"], kShare),
          .half_rate_seq = number(s["half_rate_seq"], kSize),
          .half_rate_head_dim = number(s["half_rate_head_dim"], kSize),
          .half_rate_waves = number(s["half_rate_waves"], kSize)};
}

AttentionProfile read_attention(const Value& value) {
  const Keys keys{"source", "tile", "forward", "backward"};
  const Section s = section(value, keys);
  text(s["source"]);
  return {whole(s["tile"], kCount), read_curve(s["forward"]), read_curve(s["backward"])};
}

ProductPoint read_product(const Value& value) {
  const Keys keys{"kernel", "dtype", "m", "n", "k", "time_ns"};
  const Section s = section(value, keys);
  return {.kernel = text(s["kernel"]),
          .dtype = floating(s["dtype"]),
          .m = whole(s["m"], kCount),
          .n = whole(s["n"], kCount),
          .k = whole(s["k"], kCount),
          .time_ns = number(s["time_ns"], kTime)};
}

AttentionPoint read_attention_point(const Value& value) {
  const Keys keys{"kernel", "dtype", "heads", "seq", "head_dim", "time_ns"};
  const Section s = section(value, keys);
  return {.kernel = text(s["kernel"]),
          .dtype = floating(s["dtype"]),
          .heads = whole(s["heads"], kCount),
          .seq = whole(s["seq"], kCount),
          .head_dim = whole(s["head_dim"], kCount),
          .time_ns = number(s["time_ns"], kTime)};
}

MeasuredProfile read_measured(const Value& value, const MatrixProfile& matrix) {
  const Keys keys{"source", "reach", "weight"};
  const Keys optional{"products", "attention"};
  const Section s = section(value, keys, optional);
  text(s["source"]);
  MeasuredProfile measured{.reach = number(s["reach"], kPositive), .weight = number(s["weight"], kPositive)};
  const auto read = [&](std::string_view key, auto& points, auto read_point) {
    if (s.given(key) == nullptr) return;
    for (const Value& point : list(s[key], "measured kernels")) {
      points.push_back(read_point(point));
      if (matrix.peak_flops_per_s.contains(points.back().dtype)) continue;
      config_error("{}: {} is of {}, and matrix.peak_flops_per_s has none; add it there", point.where(), point.path(),
                   name(points.back().dtype));
    }
  };
  read("products", measured.products, read_product);
  read("attention", measured.attention, read_attention_point);
  return measured;
}

VectorProfile read_vector(const Value& value) {
  const Keys keys{"source", "flops_per_s"};
  const Keys optional{"relative_rate"};
  const Section s = section(value, keys, optional);
  text(s["source"]);
  VectorProfile vector{.flops_per_s = number(s["flops_per_s"], kRate)};
  const Value* rates = s.given("relative_rate");
  if (rates == nullptr) return vector;
  if (!rates->is_mapping()) rates->refuse("a mapping of kernel names and factors");
  for (const Value& rate : rates->items()) vector.relative_rate.emplace(rate.key(), number(rate, kRelative));
  return vector;
}

LaunchProfile read_launch(const Value& value) {
  const Keys keys{"source", "kernel_launch_ns", "dispatch_ns", "library_ns", "collective_ns", "stream_wait_ns"};
  const Section s = section(value, keys);
  text(s["source"]);
  return {.kernel_launch_ns = whole(s["kernel_launch_ns"], kWholeTime),
          .dispatch_ns = whole(s["dispatch_ns"], kWholeTime),
          .library_ns = whole(s["library_ns"], kWholeTime),
          .collective_ns = whole(s["collective_ns"], kWholeTime),
          .stream_wait_ns = whole(s["stream_wait_ns"], kWholeTime)};
}

// `inner`: the level before; null for the nearest.
LinkLevel read_level(const Value& value, const LinkLevel* inner, bool last) {
  static constexpr std::array<std::string_view, 2> kTopologies{"switch", "full_mesh"};
  static constexpr std::array<std::string_view, 3> kAlgorithms{"ring", "doubling", "direct"};
  Keys keys{"name",
            "topology",
            "algorithm",
            "latency_ns",
            "bandwidth_bytes_per_s",
            "efficiency",
            "half_rate_message_bytes",
            "compute_slowdown"};
  if (!last) keys.insert(keys.begin() + 1, "devices");
  const Section s = section(value, keys);
  LinkLevel level{.name = shown_name(s["name"]),
                  .devices = last ? 0 : whole(s["devices"], kCount),
                  .topology = static_cast<Topology>(one_of(s["topology"], kTopologies)),
                  .algorithm = static_cast<Algorithm>(one_of(s["algorithm"], kAlgorithms)),
                  .latency_ns = whole(s["latency_ns"], kWholeTime),
                  .bandwidth_bytes_per_s = number(s["bandwidth_bytes_per_s"], kRate),
                  .efficiency = number(s["efficiency"], kShare),
                  .half_rate_message_bytes = whole(s["half_rate_message_bytes"], kWhole),
                  .compute_slowdown = number(s["compute_slowdown"], kLoss)};
  if (!last && inner != nullptr && (level.devices <= inner->devices || level.devices % inner->devices != 0)) {
    s["devices"].refuse(
        fmt::format("a multiple of the {} devices of {}, the level before", inner->devices, inner->name));
  }
  if (level.topology == Topology::kFullMesh && (last || level.devices / (inner ? inner->devices : 1) < 2)) {
    s["topology"].refuse("switch, or at least 2 devices a domain: a full mesh has as many links as peers");
  }
  if (level.algorithm == Algorithm::kDirect && level.topology != Topology::kFullMesh) {
    s["algorithm"].refuse("ring or doubling; direct needs topology: full_mesh");
  }
  return level;
}

LinkProfile read_links(const Value& value) {
  const Keys keys{"source", "levels", "launch_ns", "pipeline_chunks", "loss_per_doubling"};
  const Section s = section(value, keys);
  text(s["source"]);
  LinkProfile links{.launch_ns = whole(s["launch_ns"], kWholeTime),
                    .pipeline_chunks = whole(s["pipeline_chunks"], kCount),
                    .loss_per_doubling = number(s["loss_per_doubling"], kLoss)};
  const std::vector<Value>& levels = list(s["levels"], "levels of links, from the nearest to the farthest");
  if (levels.size() > 8) s["levels"].refuse("at most 8 levels");
  if (levels.size() < 2) s["levels"].refuse("at least 2 levels: inside a node, and between nodes");
  for (std::size_t l = 0; l < levels.size(); ++l) {
    const LinkLevel level = read_level(levels[l], l == 0 ? nullptr : &links.levels[l - 1], l + 1 == levels.size());
    links.levels.push_back(level);
  }
  return links;
}

HostLinkProfile read_host_link(const Value& value) {
  const Keys keys{"source",
                  "latency_ns",
                  "h2d_pinned_bytes_per_s",
                  "d2h_pinned_bytes_per_s",
                  "h2d_pageable_bytes_per_s",
                  "d2h_pageable_bytes_per_s"};
  const Section s = section(value, keys);
  text(s["source"]);
  return {.latency_ns = whole(s["latency_ns"], kWholeTime),
          .h2d_pinned_bytes_per_s = number(s["h2d_pinned_bytes_per_s"], kRate),
          .d2h_pinned_bytes_per_s = number(s["d2h_pinned_bytes_per_s"], kRate),
          .h2d_pageable_bytes_per_s = number(s["h2d_pageable_bytes_per_s"], kRate),
          .d2h_pageable_bytes_per_s = number(s["d2h_pageable_bytes_per_s"], kRate)};
}

HostProfile read_host(const Value& value, const LinkProfile& links) {
  const Keys keys{"source", "memory_bandwidth_bytes_per_s", "flops_per_s", "kernel_ns", "numa_node_of_device"};
  const Keys optional{"memory_bytes"};
  const Section s = section(value, keys, optional);
  text(s["source"]);
  HostProfile host{.memory_bandwidth_bytes_per_s = number(s["memory_bandwidth_bytes_per_s"], kRate),
                   .flops_per_s = number(s["flops_per_s"], kRate),
                   .kernel_ns = whole(s["kernel_ns"], kWholeTime)};
  if (const Value* bytes = s.given("memory_bytes")) host.memory_bytes = whole(*bytes, kCount);
  constexpr Range kNode{.most = 1023, .whole = true, .words = "the number of a NUMA node, 0 to 1023"};
  const Value& nodes = s["numa_node_of_device"];
  for (const Value& node : list(nodes, "NUMA nodes, one for each device of a host")) {
    host.numa_node_of_device.push_back(static_cast<int>(whole(node, kNode)));
  }
  std::vector<std::int64_t> domains;
  for (const LinkLevel& level : links.levels) domains.push_back(level.devices);
  domains.pop_back();
  const auto devices = static_cast<std::int64_t>(host.numa_node_of_device.size());
  if (std::ranges::find(domains, devices) == domains.end()) {
    config_error("{}: {} has {} entries; use one for each device of a host, as many as a level of links joins: {}",
                 nodes.where(), nodes.path(), devices, fmt::join(domains, " or "));
  }
  return host;
}

HardwareProfile read_profile(const Value& document) {
  const Keys keys{"name",      "source", "architecture", "software", "memory",    "matrix",
                  "attention", "vector", "launch",       "links",    "host_link", "host"};
  const Keys optional{"measured"};
  const Section s = section(document, keys, optional);
  text(s["source"]);
  HardwareProfile profile{.name = shown_name(s["name"]),
                          .architecture = shown_name(s["architecture"]),
                          .software = shown_name(s["software"]),
                          .memory = read_memory(s["memory"]),
                          .matrix = read_matrix(s["matrix"]),
                          .attention = read_attention(s["attention"]),
                          .vector = read_vector(s["vector"]),
                          .launch = read_launch(s["launch"]),
                          .links = read_links(s["links"]),
                          .host_link = read_host_link(s["host_link"])};
  if (s.given("measured") != nullptr) profile.measured = read_measured(s["measured"], profile.matrix);
  profile.host = read_host(s["host"], profile.links);
  return profile;
}

constexpr config::DocumentWords kWords{
    .empty = "{file}: the file has no keys; begin with a copy of configs/devices/h200.yaml"};

}  // namespace

HardwareProfile load_profile(const std::filesystem::path& path) {
  return parse_profile(config::read_text(path, "an existing device profile, as configs/devices/h200.yaml"),
                       path.string());
}

HardwareProfile parse_profile(std::string_view text, std::string_view file_name) {
  return read_profile(config::parse_yaml(text, file_name, kWords));
}

}  // namespace loom::virtual_time
