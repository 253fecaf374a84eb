// Phases of a step of PyTorch FSDP2 on an H200 (tests/reference/memory/pytorch_fsdp2_h200.json, fwd_bwd_opt_ms), predicted by
// a dry run of this engine and configs/devices/h200.yaml, which knows single kernels only.
//
// usage: time_parity PROFILE.yaml FILE
//
// Links    cost nothing: the reference ran on a fake process group that moves nothing.
// Judged   phases that the device decides: forward and backward of the 8B rows, backward of the 1B rows. Median of the
//          errors at most 5 %, worst 12 %.
// Shown    for the others, where the host decides (one and the same step scatters between 42 and 75 ms), the device's
//          bound and the host's estimate.
#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/device/profile_file.h"
#include "engine/device/simulate.h"
#include "tests/memory/reference_run.h"

namespace {

using namespace loom;

constexpr double kMedian = 0.05;
constexpr double kWorst = 0.12;
constexpr std::array kPhases = {"forward", "backward", "optimizer"};

using PhaseTimes = std::array<double, 3>;  // ms

device::HardwareProfile without_links(device::HardwareProfile profile) {
  profile.links.launch_ns = 0;
  for (device::LinkLevel& level : profile.links.levels) {
    level.latency_ns = 0;
    level.half_rate_message_bytes = 0;
    level.compute_slowdown = 0;
    level.bandwidth_bytes_per_s = 1e30;
  }
  return profile;
}

// As events on the compute stream give them.
PhaseTimes phases(const device::Timeline& timeline, const device::TimeModel& model, device::HostCosts costs) {
  const device::RankTimeline rank{0, &timeline};
  const device::VirtualTimes times = device::resolve({&rank, 1}, model, costs);
  const auto& marks = times.ranks.front().marks;
  PhaseTimes result{};
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i] = static_cast<double>(marks.at(i + 1).compute_ns - marks.at(i).compute_ns) * 1e-6;
  }
  return result;
}

bool device_decides(const test::ReferenceRow& row, std::size_t phase) {
  if (row.offload_to_cpu || phase == 2) return false;
  return row.model == "llama_8b" || (row.model == "llama_1b" && phase == 1);
}

struct Errors {
  std::vector<double> shares;  // of judged phases

  void judge(double predicted, double measured) { shares.push_back(std::fabs(predicted / measured - 1)); }
  bool within_bounds() {
    std::ranges::sort(shares);
    fmt::print("{} device-bound phases: median {:.1f} % (at most {:.0f}), worst {:.1f} % (at most {:.0f})\n",
               shares.size(), 100 * shares[shares.size() / 2], 100 * kMedian, 100 * shares.back(), 100 * kWorst);
    return shares[shares.size() / 2] <= kMedian && shares.back() <= kWorst;
  }
};

void compare(const nlohmann::json& json, const device::TimeModel& model, Errors& errors) {
  const auto row = test::ReferenceRow::from_json(json);
  test::ReferenceRun run(row);
  run.step();  // brings the optimizer's state
  run.device().timeline().enable(true);
  run.step();
  const PhaseTimes bound = phases(run.device().timeline(), model, device::HostCosts::kFree);
  const PhaseTimes hosted = phases(run.device().timeline(), model, device::HostCosts::kCounted);
  for (std::size_t i = 0; i < bound.size(); ++i) {
    const double measured = json.at("fwd_bwd_opt_ms").at(i);
    const bool judged = device_decides(row, i);
    fmt::print("{:<34} {:<9} measured {:>6.1f} ms  device {:>6.1f}  with host {:>6.1f}  {}\n", row.name(), kPhases[i],
               measured, bound[i], hosted[i],
               judged ? fmt::format("{:+.1f} %", 100 * (bound[i] / measured - 1)) : "the host decides");
    if (judged) errors.judge(bound[i], measured);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: time_parity PROFILE.yaml FILE\n");
    return 2;
  }
  try {
    const device::TimeModel model(without_links(device::load_profile(argv[1])));
    std::ifstream file(argv[2]);
    Errors errors;
    for (const nlohmann::json& row : nlohmann::json::parse(file)) compare(row, model, errors);
    return !errors.shares.empty() && errors.within_bounds() ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "time_parity: {}\n", error.what());
    return 2;
  }
}
