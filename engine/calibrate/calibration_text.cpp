#include "engine/calibrate/calibration_text.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/core/units.h"
#include "engine/virtual_time/profile_text.h"

namespace loom::calibrate {
namespace {

std::string error_text(double share) { return fmt::format("{:+.1f} %", 100 * share); }

std::string summary_line(const char* name, const ErrorSummary& summary) {
  return fmt::format("{}: median {} %, worst {} %\n", name, figure(100 * summary.median, 1),
                     figure(100 * summary.worst, 1));
}

nlohmann::ordered_json to_json(const ErrorSummary& summary) {
  return {{"median", summary.median}, {"worst", summary.worst}};
}

}  // namespace

std::string profile_file_text(const FittedProfile& fitted, const std::string& times, const std::string& base) {
  const std::string from = "profile " + base, rest = "; " + from + " (the rest)", fit = "fitted to " + times;
  const virtual_time::ProfileSources sources{
      .profile = fit + "; " + from,
      .memory = fit + " (streaming_efficiency)" + rest,
      .matrix = fit + " (efficiency, half_rate_k, half_rate_tile, wave_quantisation)" + rest,
      .attention = fit + ", as far as it was measured" + rest,
      .measured = times + " less dispatch_ns, library_ns and kernel_launch_ns; rows bound by memory left out",
      .vector = fit + " (cast and products of relative_rate)" + rest,
      .launch = fit + " (dispatch_ns, library_ns)" + rest,
      .links = from,
      .host_link = times + ", the longest copy of each kind that was measured" + rest,
      .host = from};
  return virtual_time::profile_text(
      fitted.profile, sources,
      fmt::format("Calibrated by shardloom calibrate on {} kernels of {}, from profile {}.\n"
                  "What every key means: engine/virtual_time/profile.h; how times are made of them: "
                  "engine/virtual_time/time_model.h.",
                  fitted.rows.size(), times, base));
}

std::string to_text(const FittedProfile& fitted) {
  std::string text =
      fmt::format("{:<46}{:>14}{:>14}{:>9}{:>14}\n", "kernel", "measured us", "predicted us", "error", "without it");
  for (const RowError& row : fitted.rows) {
    text += fmt::format("{:<46}{:>14.1f}{:>14.1f}{:>9}{:>14}\n", row.row.label, row.row.measured_ns / 1e3,
                        row.predicted_ns / 1e3, error_text(row.with_own_point), error_text(row.without_own_point));
  }
  if (fitted.left_out > 0) {
    text += fmt::format("{} shorter row{} left out: they time the host\n", fitted.left_out,
                        fitted.left_out == 1 ? " is" : "s are");
  }
  text +=
      summary_line("with its own point", fitted.with_own_point) + summary_line("without it", fitted.without_own_point);
  text += fmt::format("\n{:<42}{:>16}{:>16}\n", "figure", "before", "fitted");
  for (const FittedFigure& one : fitted.figures) {
    text += fmt::format("{:<42}{:>16g}{:>16g}\n", one.name, one.base, one.fitted);
  }
  return text;
}

nlohmann::ordered_json to_json(const FittedProfile& fitted) {
  nlohmann::ordered_json json;
  json["name"] = fitted.profile.name;
  json["rows"] = nlohmann::ordered_json::array();
  for (const RowError& row : fitted.rows) {
    json["rows"].push_back({{"kernel", row.row.label},
                            {"measured_ns", row.row.measured_ns},
                            {"predicted_ns", row.predicted_ns},
                            {"error", row.with_own_point},
                            {"error_without_own_point", row.without_own_point}});
  }
  json["left_out"] = fitted.left_out;
  json["errors"] = to_json(fitted.with_own_point);
  json["errors_without_own_point"] = to_json(fitted.without_own_point);
  json["figures"] = nlohmann::ordered_json::array();
  for (const FittedFigure& one : fitted.figures) {
    json["figures"].push_back({{"figure", one.name}, {"before", one.base}, {"fitted", one.fitted}});
  }
  return json;
}

}  // namespace loom::calibrate
