#include "engine/cli/commands/calibrate_command.h"

#include <nlohmann/json.hpp>

#include "engine/calibrate/calibration_text.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/io/atomic_file.h"
#include "engine/io/output_plan.h"
#include "engine/virtual_time/find_profile.h"

namespace loom::cli {
namespace {

constexpr std::size_t kMostOfAName = 64;  // as profile files have it

std::string name_of(const std::filesystem::path& profile) {
  std::string name = profile.stem().string();
  if (name.size() <= kMostOfAName && escaped(name) == name) return name;
  config_error("--write-profile is {}, whose name the profile gets; use at most {} bytes without control characters",
               shown_text(profile.string()), kMostOfAName);
}

void open_outputs(const CalibrateArguments& a) {
  io::OutputPlan plan;
  plan.reads("--kernel-times", a.kernel_times);
  plan.reads("--device", virtual_time::find_profile_file(a.device));
  plan.writes_file("--write-profile", a.write_profile);
  if (a.json && *a.json != "-") plan.writes_file("--json", *a.json);
  plan.check();
  plan.prepare();
}

}  // namespace

void run_calibrate(const CalibrateArguments& a, std::ostream& out) {
  const std::string name = name_of(a.write_profile);
  const virtual_time::HardwareProfile base = virtual_time::find_profile(a.device);
  const std::vector<calibrate::KernelTime> times = calibrate::read_kernel_times(a.kernel_times);
  open_outputs(a);
  calibrate::FittedProfile fitted = calibrate::fit_profile(base, times, {.least_ns = a.least_us * 1e3});
  fitted.profile.name = name;
  io::write_text(a.write_profile, calibrate::profile_file_text(fitted, a.kernel_times.filename().string(), base.name));
  const std::string json = to_json(fitted).dump(1) + "\n";
  if (a.json && *a.json == "-") {
    out << json;
    return;
  }
  out << to_text(fitted);
  if (a.json) io::write_text(*a.json, json);
}

}  // namespace loom::cli
