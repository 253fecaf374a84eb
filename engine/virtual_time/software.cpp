#include "engine/virtual_time/software.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fmt/format.h>

#include "engine/config/document.h"
#include "engine/config/section.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/virtual_time/find_profile.h"

namespace loom::virtual_time {
namespace {

using config::Section;
using config::Value;

constexpr std::array<std::string_view, 4> kFusible{"rmsnorm", "swiglu", "rope", "cross_entropy"};

double rate_of(const Value& value) {
  const auto number = value.number();
  if (!number || !(*number >= 0.01 && *number <= 100)) value.refuse("a factor from 0.01 to 100");
  return *number;
}

std::string text_of(const Value& value) {
  if (!value.is_scalar() || value.scalar().empty() || value.scalar().size() > 64 ||
      escaped(value.scalar()) != value.scalar()) {
    value.refuse("a text of at most 64 bytes without control characters");
  }
  return value.scalar();
}

SoftwareRates read_rates(const Value& value) {
  const Section s(
      value, {.required = {"architecture", "matrix", "attention_forward", "attention_backward", "dispatch", "source"},
              .optional = {},
              .document = "the software"});
  return {.architecture = text_of(s["architecture"]),
          .matrix = rate_of(s["matrix"]),
          .attention_forward = rate_of(s["attention_forward"]),
          .attention_backward = rate_of(s["attention_backward"]),
          .dispatch = rate_of(s["dispatch"])};
}

std::string read_fused(const Value& value) {
  const auto found = value.is_scalar() ? std::ranges::find(kFusible, value.scalar()) : kFusible.end();
  if (found == kFusible.end()) value.refuse(fmt::format("one of {}", fmt::join(kFusible, ", ")));
  return std::string(*found);
}

const SoftwareRates& rates_of(const Software& software, const HardwareProfile& profile) {
  const auto found = std::ranges::find(software.rates, profile.architecture, &SoftwareRates::architecture);
  if (found != software.rates.end()) return *found;
  std::vector<std::string_view> known;
  for (const SoftwareRates& rates : software.rates) known.push_back(rates.architecture);
  config_error(
      "--software {}: it has no rates for the architecture of device '{}', {}; it has those of {}. Add a row to its "
      "file, or leave --software out: the plan then assumes {}",
      software.name, profile.name, profile.architecture, fmt::join(known, ", "), profile.software);
}

double task_queue_factor(const Software& software, const char* value) {
  if (value == nullptr || *value == '\0' || !software.task_queue) return 1;
  const std::string_view text = value;
  if (text != "0" && text != "1" && text != "2") {
    config_error("TASK_QUEUE_ENABLE is {} in the environment; use 0, 1 or 2", shown_text(text));
  }
  return (*software.task_queue)[static_cast<std::size_t>(text.front() - '0')];
}

void scale_time(double& time_ns, double rate) { time_ns /= rate; }

void scale_host(std::int64_t& time_ns, double factor) { time_ns = std::llround(static_cast<double>(time_ns) * factor); }

}  // namespace

bool Software::fuses(std::string_view kernel) const { return std::ranges::find(fused, kernel) != fused.end(); }

std::filesystem::path find_software_file(const std::string& software) {
  return find_config_file(software, {.flag = "--software",
                                     .folder = "software",
                                     .variable = "SHARDLOOM_SOFTWARE",
                                     .none = ", neither a file nor a release in",
                                     .all = "software"});
}

Software find_software(const std::string& software) {
  const std::filesystem::path path = find_software_file(software);
  return parse_software(config::read_text(path, "a file of software, as configs/software/pytorch-2.11.yaml"),
                        path.string());
}

Software parse_software(std::string_view text, std::string_view file_name) {
  constexpr config::DocumentWords kWords{
      .empty = "{file}: the file has no keys; begin with a copy of configs/software/pytorch-2.11.yaml"};
  const Value document = config::parse_yaml(text, file_name, kWords);
  const Section s(
      document,
      {.required = {"name", "source", "fused", "rates"}, .optional = {"task_queue"}, .document = "the software"});
  Software software{.name = text_of(s["name"])};
  if (!s["fused"].is_list()) s["fused"].refuse("a list of kernels, [] for none");
  for (const Value& kernel : s["fused"].items()) software.fused.push_back(read_fused(kernel));
  if (!s["rates"].is_list() || s["rates"].items().empty()) s["rates"].refuse("a list of rates by architecture");
  for (const Value& rates : s["rates"].items()) software.rates.push_back(read_rates(rates));
  if (const Value* queue = s.given("task_queue")) {
    if (!queue->is_list() || queue->items().size() != 3) queue->refuse("three factors, of TASK_QUEUE_ENABLE=0, 1, 2");
    std::array<double, 3> factors{};
    for (std::size_t i = 0; i < factors.size(); ++i) factors[i] = rate_of(queue->items()[i]);
    software.task_queue = factors;
  }
  return software;
}

HardwareProfile with_software(HardwareProfile profile, const Software& own, const Software& chosen,
                              const char* task_queue) {
  const SoftwareRates& from = rates_of(own, profile);
  const SoftwareRates& to = rates_of(chosen, profile);
  const double matrix = to.matrix / from.matrix;
  const double forward = to.attention_forward / from.attention_forward;
  const double backward = to.attention_backward / from.attention_backward;
  profile.matrix.efficiency *= matrix;
  profile.matrix.fp8_efficiency *= matrix;
  profile.attention.forward.efficiency *= forward;
  profile.attention.backward.efficiency *= backward;
  for (ProductPoint& point : profile.measured.products) scale_time(point.time_ns, matrix);
  for (AttentionPoint& point : profile.measured.attention) {
    scale_time(point.time_ns, point.kernel == "attention_grad" ? backward : forward);
  }
  const double dispatch = to.dispatch / from.dispatch * task_queue_factor(chosen, task_queue);
  for (std::int64_t* cost : {&profile.launch.dispatch_ns, &profile.launch.library_ns, &profile.launch.collective_ns,
                             &profile.launch.stream_wait_ns}) {
    scale_host(*cost, dispatch);
  }
  profile.software = chosen.name;
  return profile;
}

}  // namespace loom::virtual_time
