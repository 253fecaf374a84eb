// optimizer_parity DIR: the schedules of Megatron's OptimizerParamScheduler.
//
// Every schedule of DIR/schedules.json is a case: learning rate and weight decay of each of its steps must agree within
// 1e-12 of the reference, relative. A subfolder of DIR with a curve.json is the curve of an optimizer: skipped, since
// this program trains none yet.
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/train/lr_schedule.h"
#include "tests/support/parity_report.h"

namespace loom {
namespace {

using nlohmann::json;

constexpr double kRelative = 1e-12;

template <class Style>
Style style_of(const json& word) {
  if (word.is_null()) return Style{};
  for (const auto& [known, style] : train::style_words<Style>()) {
    if (word == known) return style;
  }
  config_error("the style {} is not known", word.dump());
}

std::int64_t count_of(const json& number) { return number.is_null() ? 0 : number.get<std::int64_t>(); }

train::LrSchedule learning_rate(const json& a) {
  return {.max_lr = a.at("max_lr"),
          .min_lr = a.at("min_lr"),
          .style = style_of<train::LrDecayStyle>(a.at("lr_decay_style")),
          .warmup_steps = a.at("lr_warmup_steps"),
          .decay_steps = a.at("lr_decay_steps"),
          .init_lr = a.at("init_lr"),
          .wsd_style = style_of<train::WsdDecayStyle>(a.at("lr_wsd_decay_style")),
          .wsd_decay_steps = count_of(a.at("wsd_decay_steps"))};
}

train::WeightDecaySchedule weight_decay(const json& a) {
  return {.start = a.at("start_wd"),
          .end = a.at("end_wd"),
          .style = style_of<train::WeightDecayIncrStyle>(a.at("wd_incr_style")),
          .incr_steps = a.at("wd_incr_steps")};
}

std::string name_of(const json& a, std::size_t index) {
  std::string name = fmt::format("schedule {}: {}", index, a.at("lr_decay_style").get<std::string>());
  if (!a.at("lr_wsd_decay_style").is_null()) name += " " + a.at("lr_wsd_decay_style").get<std::string>();
  return fmt::format("{}, weight decay {}", name, a.at("wd_incr_style").get<std::string>());
}

// The worst relative difference over the steps, and its step.
template <class Schedule>
std::pair<double, std::size_t> worst(const Schedule& schedule, const json& expected) {
  std::pair<double, std::size_t> found{0, 0};
  for (std::size_t step = 0; step < expected.size(); ++step) {
    const double right = expected[step];
    const double difference = std::abs(schedule.at(static_cast<std::int64_t>(step)) - right);
    const double relative = difference == 0 ? 0 : difference / std::abs(right);
    if (!(relative <= found.first)) found = {relative, step + 1};
  }
  return found;
}

void run_schedule(const json& c, std::size_t index, test::ParityReport& report) {
  const json& a = c.at("arguments");
  const std::string name = name_of(a, index);
  if (c.at("lr").empty() || c.at("lr").size() != c.at("weight_decay").size()) {
    return report.failed(name, "it has no steps, or not as many rates as weight decays");
  }
  const auto [lr, lr_step] = worst(learning_rate(a), c.at("lr"));
  const auto [decay, decay_step] = worst(weight_decay(a), c.at("weight_decay"));
  const std::string detail = fmt::format("{} steps, learning rate {:.1e} (step {}), weight decay {:.1e} (step {})",
                                         c.at("lr").size(), lr, lr_step, decay, decay_step);
  lr <= kRelative&& decay <= kRelative ? report.passed(name, detail) : report.failed(name, detail);
}

int run(const std::filesystem::path& folder) {
  test::ParityReport report;
  const std::vector<std::filesystem::path> curves = test::case_folders(folder, "curve.json");
  if (std::ifstream stream(folder / "schedules.json"); stream) {
    const json schedules = json::parse(stream).at("schedules");
    for (std::size_t i = 0; i < schedules.size(); ++i) run_schedule(schedules[i], i, report);
  }
  for (const auto& curve : curves) {
    report.skipped(curve.filename().string(), "it is the curve of an optimizer, and this program runs schedules only");
  }
  return report.finish();
}

}  // namespace
}  // namespace loom

int main(int argc, char** argv) { return loom::test::parity_main(argc, argv, "optimizer_parity", loom::run); }
