// step_time_parity PROFILE.yaml mx_rows.json: step times of PyTorch FSDP2 on an H200 (forward, backward and optimizer
// of a plain Llama, tests/memory/mx_rows.json), predicted by dry runs and a profile that knows single kernels only.
//
// Links    cost nothing: the measured steps ran on a process group that moves nothing.
// Host     costs nothing: the rows are bound by the device. The estimate with the host's costs stands beside it.
// Judged   all rows: those whose optimizer runs on the device by the median of their errors, at most 5 %, and the
//          worst, 12 %; the one with CPU offload by 8 %. The measured times scatter by 5 % themselves.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "engine/device/recorder.h"
#include "engine/virtual_time/profile_file.h"
#include "engine/virtual_time/resolve.h"
#include "tests/memory/plain_llama_run.h"
#include "tests/support/free_links.h"

namespace {

using namespace loom;

constexpr double kMedian = 0.05;
constexpr double kWorst = 0.12;
constexpr double kOffloaded = 0.08;

double step_ms(const device::Recording& recording, const virtual_time::TimeModel& model,
               virtual_time::HostCosts costs) {
  const virtual_time::RankRecording rank{0, &recording};
  return static_cast<double>(virtual_time::resolve({&rank, 1}, model, costs).end_ns) * 1e-6;
}

double worst_of(const std::vector<double>& errors) { return *std::ranges::max_element(errors); }

int compare(const test::CaseJson& content, const virtual_time::TimeModel& model) {
  std::vector<double> errors, offloaded;
  for (const test::CaseJson& json : content.at("rows").elements()) {
    const auto row = test::PlainLlamaRow::from_json(json, content.at("models"));
    test::PlainLlamaRun run(row);
    run.step();  // brings the optimizer's state
    const device::Recorder recorder(run.device());
    run.step();
    const device::Recording recording = recorder.recording();
    const double bound = step_ms(recording, model, virtual_time::HostCosts::kFree);
    const double hosted = step_ms(recording, model, virtual_time::HostCosts::kCounted);
    const double measured = json.at("step_ms");
    (row.offload_to_cpu ? offloaded : errors).push_back(std::fabs(bound / measured - 1));
    fmt::print("{:<45} measured {:>7.1f} ms  device {:>7.1f} {:>+6.1f} %  with host {:>7.1f}\n", row.text(), measured,
               bound, 100 * (bound / measured - 1), hosted);
  }
  std::ranges::sort(errors);
  const double median = errors.at(errors.size() / 2), worst = worst_of(errors);
  fmt::print("{} device-bound steps: median {:.1f} % (at most {:.0f}), worst {:.1f} % (at most {:.0f})\n",
             errors.size(), 100 * median, 100 * kMedian, 100 * worst, 100 * kWorst);
  fmt::print("{} with the optimizer on the host: worst {:.1f} % (at most {:.0f})\n", offloaded.size(),
             100 * worst_of(offloaded), 100 * kOffloaded);
  return median <= kMedian && worst <= kWorst && worst_of(offloaded) <= kOffloaded ? 0 : 1;
}

}  // namespace

int main_of_step_time_parity(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: step_time_parity PROFILE.yaml MX_ROWS.json\n");
    return 2;
  }
  try {
    return compare(test::read_case(argv[2]),
                   virtual_time::TimeModel(test::without_links(virtual_time::load_profile(argv[1]))));
  } catch (const std::exception& error) {
    fmt::print(stderr, "step_time_parity: {}\n", error.what());
    return 2;
  }
}
