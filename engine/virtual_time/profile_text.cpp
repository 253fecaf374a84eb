#include "engine/virtual_time/profile_text.h"

#include <fmt/format.h>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/shown_text.h"

namespace loom::virtual_time {
namespace {

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : escaped(text)) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

class Writer {
 public:
  void comment(const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) text_ += line.empty() ? "#\n" : "# " + escaped(line) + "\n";
  }
  void section(std::string_view name) {
    text_ += fmt::format("\n{}:\n", name);
    indent_ = 2;
  }
  void part(std::string_view name) { text_ += fmt::format("{:{}}{}:\n", "", indent_, name); }
  void indent(int columns) { indent_ = columns; }
  template <class Value>
  void put(std::string_view key, const Value& value) {
    text_ += fmt::format("{:{}}{}: {}\n", "", indent_, key, value);
  }
  void source(const std::string& text) {
    indent_ = 2;
    put("source", quoted(text));
  }
  template <class... Args>
  void item(fmt::format_string<Args...> format, Args&&... args) {
    text_ += fmt::format("{:{}}- {{{}}}\n", "", indent_, fmt::format(format, std::forward<Args>(args)...));
  }
  void top(std::string_view key, const std::string& text) { text_ += fmt::format("{}: {}\n", key, quoted(text)); }

  std::string take() { return std::move(text_); }

 private:
  std::string text_;
  int indent_ = 0;
};

void write_communicator(Writer& w, const CommunicatorProfile& c, const std::string& source) {
  w.part("communicator");
  w.indent(4);
  w.put("library", c.library == CommLibrary::kHccl ? "hccl" : "nccl");
  w.put("base_bytes", c.base_bytes);
  w.put("buffers", c.buffers);
  w.put("buffer_bytes", c.buffer_bytes);
  w.put("source", quoted(source));
  w.indent(2);
}

void write_memory(Writer& w, const MemoryProfile& m, const std::string& source) {
  w.section("memory");
  w.put("capacity_bytes", m.capacity_bytes);
  w.put("context_bytes", m.context_bytes);
  if (m.communicator) write_communicator(w, *m.communicator, source);
  w.put("matrix_workspace_bytes", m.matrix_workspace_bytes);
  if (!m.alloc_conf.empty()) w.put("alloc_conf", quoted(m.alloc_conf));
  w.put("bandwidth_bytes_per_s", m.bandwidth_bytes_per_s);
  w.put("streaming_efficiency", m.streaming_efficiency);
  w.put("half_rate_bytes", m.half_rate_bytes);
  w.source(source);
}

void write_matrix(Writer& w, const MatrixProfile& m, const std::string& source) {
  w.section("matrix");
  std::vector<std::string> peaks;
  for (const auto& [dtype, peak] : m.peak_flops_per_s) peaks.push_back(fmt::format("{}: {}", name(dtype), peak));
  w.put("peak_flops_per_s", fmt::format("{{{}}}", fmt::join(peaks, ", ")));
  w.put("cores", m.cores);
  w.part("tiles");
  w.indent(4);
  for (const MatrixTile& tile : m.tiles) w.item("m: {}, n: {}", tile.m, tile.n);
  w.indent(2);
  w.put("efficiency", m.efficiency);
  w.put("half_rate_k", m.half_rate_k);
  w.put("half_rate_tile", m.half_rate_tile);
  w.put("wave_quantisation", m.wave_quantisation);
  w.put("power_limit_share", m.power_limit_share);
  w.put("power_limit_flops", m.power_limit_flops);
  if (m.fp8_flops_per_s > 0) {
    w.put("fp8_flops_per_s", m.fp8_flops_per_s);
    w.put("fp8_efficiency", m.fp8_efficiency);
  }
  w.source(source);
}

std::string curve_text(const AttentionCurve& c) {
  return fmt::format("{{efficiency: {}, half_rate_seq: {}, half_rate_head_dim: {}, half_rate_waves: {}}}", c.efficiency,
                     c.half_rate_seq, c.half_rate_head_dim, c.half_rate_waves);
}

void write_compute(Writer& w, const HardwareProfile& p, const ProfileSources& sources) {
  w.section("attention");
  w.put("tile", p.attention.tile);
  w.put("forward", curve_text(p.attention.forward));
  w.put("backward", curve_text(p.attention.backward));
  w.source(sources.attention);
  w.section("vector");
  w.put("flops_per_s", p.vector.flops_per_s);
  if (!p.vector.relative_rate.empty()) {
    w.part("relative_rate");
    w.indent(4);
    for (const auto& [kernel, rate] : p.vector.relative_rate) w.put(kernel, rate);
  }
  w.source(sources.vector);
  w.section("launch");
  w.put("kernel_launch_ns", p.launch.kernel_launch_ns);
  w.put("dispatch_ns", p.launch.dispatch_ns);
  w.put("library_ns", p.launch.library_ns);
  w.put("collective_ns", p.launch.collective_ns);
  w.put("stream_wait_ns", p.launch.stream_wait_ns);
  w.source(sources.launch);
}

std::string_view word(Topology topology) { return topology == Topology::kSwitch ? "switch" : "full_mesh"; }
std::string_view word(Algorithm algorithm) {
  return algorithm == Algorithm::kRing ? "ring" : algorithm == Algorithm::kDoubling ? "doubling" : "direct";
}

void write_links(Writer& w, const LinkProfile& links, const std::string& source) {
  w.section("links");
  w.part("levels");
  for (const LinkLevel& level : links.levels) {
    w.indent(4);
    w.put("- name", quoted(level.name));
    w.indent(6);
    if (level.devices > 0) w.put("devices", level.devices);
    w.put("topology", word(level.topology));
    w.put("algorithm", word(level.algorithm));
    w.put("latency_ns", level.latency_ns);
    w.put("bandwidth_bytes_per_s", level.bandwidth_bytes_per_s);
    w.put("efficiency", level.efficiency);
    w.put("half_rate_message_bytes", level.half_rate_message_bytes);
    w.put("compute_slowdown", level.compute_slowdown);
  }
  w.indent(2);
  w.put("launch_ns", links.launch_ns);
  w.put("pipeline_chunks", links.pipeline_chunks);
  w.put("loss_per_doubling", links.loss_per_doubling);
  w.source(source);
}

void write_host(Writer& w, const HardwareProfile& p, const ProfileSources& sources) {
  w.section("host_link");
  w.put("latency_ns", p.host_link.latency_ns);
  w.put("h2d_pinned_bytes_per_s", p.host_link.h2d_pinned_bytes_per_s);
  w.put("d2h_pinned_bytes_per_s", p.host_link.d2h_pinned_bytes_per_s);
  w.put("h2d_pageable_bytes_per_s", p.host_link.h2d_pageable_bytes_per_s);
  w.put("d2h_pageable_bytes_per_s", p.host_link.d2h_pageable_bytes_per_s);
  w.source(sources.host_link);
  w.section("host");
  w.put("memory_bandwidth_bytes_per_s", p.host.memory_bandwidth_bytes_per_s);
  w.put("flops_per_s", p.host.flops_per_s);
  w.put("kernel_ns", p.host.kernel_ns);
  w.put("numa_node_of_device", fmt::format("[{}]", fmt::join(p.host.numa_node_of_device, ", ")));
  if (p.host.memory_bytes > 0) w.put("memory_bytes", p.host.memory_bytes);
  w.source(sources.host);
}

void write_measured(Writer& w, const MeasuredProfile& measured, const std::string& source) {
  if (measured.products.empty() && measured.attention.empty()) return;
  w.section("measured");
  w.put("reach", measured.reach);
  w.put("weight", measured.weight);
  w.source(source);
  if (!measured.products.empty()) w.part("products");
  w.indent(4);
  for (const ProductPoint& p : measured.products) {
    w.item("kernel: {}, dtype: {}, m: {}, n: {}, k: {}, time_ns: {}", p.kernel, name(p.dtype), p.m, p.n, p.k,
           p.time_ns);
  }
  w.indent(2);
  if (!measured.attention.empty()) w.part("attention");
  w.indent(4);
  for (const AttentionPoint& p : measured.attention) {
    w.item("kernel: {}, dtype: {}, heads: {}, seq: {}, head_dim: {}, time_ns: {}", p.kernel, name(p.dtype), p.heads,
           p.seq, p.head_dim, p.time_ns);
  }
}

}  // namespace

std::string profile_text(const HardwareProfile& profile, const ProfileSources& sources, const std::string& comment) {
  Writer w;
  w.comment(comment);
  w.top("name", profile.name);
  w.top("architecture", profile.architecture);
  w.top("software", profile.software);
  w.top("source", sources.profile);
  write_memory(w, profile.memory, sources.memory);
  write_matrix(w, profile.matrix, sources.matrix);
  write_compute(w, profile, sources);
  write_links(w, profile.links, sources.links);
  write_host(w, profile, sources);
  write_measured(w, profile.measured, sources.measured);
  return w.take();
}

}  // namespace loom::virtual_time
