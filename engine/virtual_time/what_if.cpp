#include "engine/virtual_time/what_if.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"

namespace loom::virtual_time {
namespace {

constexpr double kLeastFactor = 0.001;
constexpr double kMostFactor = 1000;
constexpr std::string_view kOfALevel = "links.";

void scale(double& figure, double factor) { figure *= factor; }
void scale(std::int64_t& figure, double factor) { figure = std::llround(static_cast<double>(figure) * factor); }

void scale_points(MeasuredProfile& measured, bool products, double rate) {
  for (AttentionPoint& point : measured.attention) scale(point.time_ns, 1 / rate);
  if (!products) return;
  for (ProductPoint& point : measured.products) scale(point.time_ns, 1 / rate);
}

struct Row {
  std::string_view name;
  std::string_view about;
  void (*apply)(HardwareProfile& profile, double factor);
};

constexpr std::array<Row, 12> kRows{{
    {"links", "bandwidth of every level of links",
     [](HardwareProfile& p, double x) {
       for (LinkLevel& level : p.links.levels) scale(level.bandwidth_bytes_per_s, x);
     }},
    {"link_latency", "latency of every level of links, and the launch of a collective",
     [](HardwareProfile& p, double x) {
       for (LinkLevel& level : p.links.levels) scale(level.latency_ns, x);
       scale(p.links.launch_ns, x);
     }},
    {"memory", "memory of the device", [](HardwareProfile& p, double x) { scale(p.memory.capacity_bytes, x); }},
    {"bandwidth", "bandwidth of the device's memory",
     [](HardwareProfile& p, double x) { scale(p.memory.bandwidth_bytes_per_s, x); }},
    {"matrix", "peak of matrix products and attention, in every dtype",
     [](HardwareProfile& p, double x) {
       for (auto& [dtype, peak] : p.matrix.peak_flops_per_s) scale(peak, x);
       scale(p.matrix.fp8_flops_per_s, x);
       scale_points(p.measured, true, x);
     }},
    {"attention", "share of that peak that attention reaches",
     [](HardwareProfile& p, double x) {
       for (AttentionCurve* curve : {&p.attention.forward, &p.attention.backward}) scale(curve->efficiency, x);
       scale_points(p.measured, false, x);
     }},
    {"vector", "arithmetic outside of matrix products",
     [](HardwareProfile& p, double x) { scale(p.vector.flops_per_s, x); }},
    {"kernel_launch", "time before a kernel computes",
     [](HardwareProfile& p, double x) { scale(p.launch.kernel_launch_ns, x); }},
    {"dispatch", "time of the host for every kernel, collective and wait",
     [](HardwareProfile& p, double x) {
       for (std::int64_t* time :
            {&p.launch.dispatch_ns, &p.launch.library_ns, &p.launch.collective_ns, &p.launch.stream_wait_ns}) {
         scale(*time, x);
       }
     }},
    {"host", "speed of the host's own work: its memory's bandwidth and its arithmetic",
     [](HardwareProfile& p, double x) {
       scale(p.host.memory_bandwidth_bytes_per_s, x);
       scale(p.host.flops_per_s, x);
     }},
    {"host_memory", "memory of the host", [](HardwareProfile& p, double x) { scale(p.host.memory_bytes, x); }},
    {"host_link", "rates of the link to the host, both ways",
     [](HardwareProfile& p, double x) {
       HostLinkProfile& l = p.host_link;
       for (double* rate : {&l.h2d_pinned_bytes_per_s, &l.d2h_pinned_bytes_per_s, &l.h2d_pageable_bytes_per_s,
                            &l.d2h_pageable_bytes_per_s}) {
         scale(*rate, x);
       }
     }},
}};

const Row* find_row(std::string_view name) {
  const auto found = std::ranges::find(kRows, name, &Row::name);
  return found == kRows.end() ? nullptr : &*found;
}

bool is_level(std::string_view figure) { return figure.starts_with(kOfALevel) && figure.size() > kOfALevel.size(); }

[[noreturn]] void refuse_name(std::string_view figure, const std::vector<std::string>& names) {
  const auto nearest = nearest_spelling(figure, names);
  config_error("--what-if names {}, which is no figure that it scales; {}use one of {}", shown_text(figure),
               nearest ? fmt::format("did you mean {}? ", *nearest) : "", fmt::join(names, ", "));
}

void scale_level(HardwareProfile& profile, const WhatIf& what_if) {
  std::vector<std::string> names;
  for (LinkLevel& level : profile.links.levels) {
    names.push_back(fmt::format("{}{}", kOfALevel, level.name));
    if (names.back() == what_if.figure) return scale(level.bandwidth_bytes_per_s, what_if.factor);
  }
  names.emplace_back("links");
  refuse_name(what_if.figure, names);
}

}  // namespace

WhatIf read_what_if(const std::string& word) {
  const std::size_t equal = word.find('=');
  if (equal == std::string::npos) {
    config_error("--what-if is {}; use a figure and its factor, as links=0.7", shown_text(word));
  }
  WhatIf what_if{.figure = word.substr(0, equal)};
  if (find_row(what_if.figure) == nullptr && !is_level(what_if.figure)) refuse_name(what_if.figure, what_if_names());
  const auto factor = parse_number<double>(std::string_view(word).substr(equal + 1));
  if (!factor || !(*factor >= kLeastFactor && *factor <= kMostFactor)) {
    config_error("--what-if {} is {}; use a factor from {} to {}", what_if.figure, shown_text(word.substr(equal + 1)),
                 kLeastFactor, kMostFactor);
  }
  what_if.factor = *factor;
  return what_if;
}

std::string about(const WhatIf& what_if) {
  if (const Row* row = find_row(what_if.figure)) return std::string(row->about);
  return fmt::format("bandwidth of the links of a {}", what_if.figure.substr(kOfALevel.size()));
}

std::vector<std::string> what_if_names() {
  std::vector<std::string> names;
  for (const Row& row : kRows) names.emplace_back(row.name);
  names.insert(names.begin() + 1, fmt::format("{}LEVEL", kOfALevel));
  return names;
}

HardwareProfile scaled(HardwareProfile profile, std::span<const WhatIf> what_if) {
  for (const WhatIf& one : what_if) {
    if (one.figure == "host_memory" && profile.host.memory_bytes == 0) {
      config_error("--what-if scales host_memory, and profile '{}' has no host.memory_bytes; add it there",
                   profile.name);
    }
    if (const Row* row = find_row(one.figure)) {
      row->apply(profile, one.factor);
    } else {
      scale_level(profile, one);
    }
  }
  const MemoryProfile& memory = profile.memory;
  if (memory.capacity_bytes <= memory.context_bytes) {
    config_error(
        "--what-if leaves profile '{}' {} bytes of memory, of which driver and libraries take {}; use a larger factor",
        profile.name, memory.capacity_bytes, memory.context_bytes);
  }
  return profile;
}

}  // namespace loom::virtual_time
