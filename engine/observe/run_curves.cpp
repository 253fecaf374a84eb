#include "engine/observe/run_curves.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "engine/core/error.h"
#include "engine/formats/events/event_file.h"
#include "engine/log/metrics_keys.h"
#include "engine/observe/metrics_file.h"

namespace loom::observe {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMetricsName = "metrics.jsonl";
constexpr std::size_t kMostSteps = 10'000'000;

std::optional<double> finite(double value) { return std::isfinite(value) ? std::optional(value) : std::nullopt; }

void add_figure(Curve& curve, const nlohmann::ordered_json& line, const char* key) {
  const auto value = line.find(key);
  if (value == line.end()) return;
  curve[line.at(log::keys::kStep).get<std::int64_t>()] = value->is_null() ? std::nullopt : finite(value->get<double>());
}

RunCurves of_metrics(const fs::path& file) {
  const MetricsFile metrics = read_metrics(file);
  RunCurves run{.source = file.string(), .loss = {}, .grad_norm = {}, .repeated = metrics.repeated};
  for (const auto& line : metrics.lines) {
    add_figure(run.loss, line, log::keys::kLoss);
    add_figure(run.grad_norm, line, log::keys::kGradNorm);
  }
  return run;
}

Curve* curve_of(RunCurves& run, std::string_view tag) {
  if (tag == "lm loss" || tag == "loss_metrics/global_avg_loss") return &run.loss;
  if (tag == "grad-norm" || tag == "grad_norm") return &run.grad_norm;
  return nullptr;
}

void add_events(RunCurves& run, const fs::path& file) {
  io::read_scalars(file, [&](const io::Scalar& scalar) {
    Curve* curve = curve_of(run, scalar.tag);
    if (curve == nullptr) return;
    if (curve->size() == kMostSteps) {
      config_error("{}: more than {} steps; give a shorter file", file.string(), kMostSteps);
    }
    if (!curve->insert_or_assign(scalar.step, finite(double{scalar.value})).second) ++run.repeated;
  });
}

// By name, which begins with the time.
std::vector<fs::path> event_files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (io::is_event_file(entry->path())) files.push_back(entry->path());
  }
  if (error) config_error("{}: cannot read the folder: {}", folder.string(), error.message());
  std::ranges::sort(files);
  return files;
}

RunCurves of_events(const std::string& source, const std::vector<fs::path>& files) {
  RunCurves run{.source = source, .floats = true, .loss = {}, .grad_norm = {}};
  for (const fs::path& file : files) add_events(run, file);
  return run;
}

RunCurves of_folder(const fs::path& folder) {
  if (fs::exists(folder / kMetricsName)) return of_metrics(folder / kMetricsName);
  const std::vector<fs::path> files = event_files_in(folder);
  if (files.empty()) {
    config_error(
        "{}: holds no metrics.jsonl and no event files of TensorBoard; give the folder of --save or of "
        "--tensorboard-dir, or a file",
        folder.string());
  }
  return of_events(fmt::format("{} ({} event file{})", folder.string(), files.size(), files.size() == 1 ? "" : "s"),
                   files);
}

double relative_error(double a, double b) {
  if (a == b) return 0;
  return a == 0 ? std::numeric_limits<double>::infinity() : std::abs(b - a) / std::abs(a);
}

std::optional<double> as_float(std::optional<double> value) {
  if (!value) return value;
  return double{static_cast<float>(*value)};
}

class Comparison {
 public:
  explicit Comparison(double tolerance) : tolerance_(tolerance) {}

  void add(std::int64_t step, std::optional<double> a, std::optional<double> b) {
    if (result_.common++ == 0) result_.first = step;
    result_.last = step;
    if (!a && !b) return;
    if (!a || !b) return differ(step, a, b);
    const double error = relative_error(*a, *b);
    sum_ += error;
    ++finite_;
    if (error > result_.max_relative_error) {
      result_.max_relative_error = error;
      result_.worst_step = step;
    }
    if (error > tolerance_) differ(step, a, b);
  }

  CurveComparison result() const {
    CurveComparison result = result_;
    if (finite_ > 0) result.mean_relative_error = sum_ / static_cast<double>(finite_);
    return result;
  }

 private:
  void differ(std::int64_t step, std::optional<double> a, std::optional<double> b) {
    if (result_.different++ == 0) result_.first_difference = {step, a, b};
  }

  const double tolerance_;
  CurveComparison result_;
  double sum_ = 0;
  std::int64_t finite_ = 0;
};

}  // namespace

RunCurves read_run(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return of_folder(path);
  RunCurves run = io::is_event_file(path) ? of_events(path.string(), {path}) : of_metrics(path);
  return run;
}

CurveComparison compare_curves(const Curve& a, const Curve& b, double tolerance, bool floats) {
  Comparison comparison(tolerance);
  for (const auto& [step, value] : a) {
    const auto other = b.find(step);
    if (other == b.end()) continue;
    comparison.add(step, floats ? as_float(value) : value, floats ? as_float(other->second) : other->second);
  }
  CurveComparison result = comparison.result();
  result.only_a = static_cast<std::int64_t>(a.size()) - result.common;
  result.only_b = static_cast<std::int64_t>(b.size()) - result.common;
  return result;
}

}  // namespace loom::observe
