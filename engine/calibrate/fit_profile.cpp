#include "engine/calibrate/fit_profile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <functional>
#include <iterator>
#include <limits>
#include <random>

#include "engine/core/error.h"
#include "engine/core/parse_number.h"

namespace loom::calibrate {
namespace {

using device::Cost;
using device::Unit;
using virtual_time::AttentionCurve;
using virtual_time::AttentionProfile;
using virtual_time::HardwareProfile;
using virtual_time::HostLinkProfile;
using virtual_time::LaunchProfile;
using virtual_time::MatrixProfile;
using virtual_time::MemoryProfile;
using virtual_time::TimeModel;
using Rows = std::vector<KernelTime>;

constexpr double kLargeError = 0.08;
constexpr double kNsPerS = 1e9;

// A figure to fit, with its bounds.
struct Figure {
  std::string name;
  std::function<double(const HardwareProfile&)> get;
  std::function<void(HardwareProfile&, double)> set;
  double start;
  double least;
  double most;
};

template <class Section, class Member>
Figure figure(std::string name, Section HardwareProfile::*section, Member Section::*member, double start, double least,
              double most) {
  return {std::move(name),
          [=](const HardwareProfile& p) { return static_cast<double>(p.*section.*member); },
          [=](HardwareProfile& p, double value) { p.*section.*member = static_cast<Member>(value); },
          start,
          least,
          most};
}

// The first of `kernels` stands for all.
Figure relative_rate(std::string name, std::vector<std::string> kernels, double start) {
  return {std::move(name),
          [kernels](const HardwareProfile& p) {
            const auto found = p.vector.relative_rate.find(kernels.front());
            return found == p.vector.relative_rate.end() ? 1.0 : found->second;
          },
          [kernels](HardwareProfile& p, double value) {
            for (const std::string& kernel : kernels) p.vector.relative_rate[kernel] = value;
          },
          start,
          0.1,
          2};
}

bool has(const Rows& rows, std::string_view kernel) {
  return std::ranges::any_of(rows, [&](const KernelTime& row) { return row.kernel == kernel; });
}

bool has(const Rows& rows, Unit unit) {
  return std::ranges::any_of(rows, [&](const KernelTime& row) { return row.cost.unit == unit; });
}

std::vector<Figure> figures_of_copies(const Rows& rows) {
  using P = HardwareProfile;
  std::vector<Figure> all;
  if (has(rows, Unit::kCopy)) {
    all.push_back(
        figure("memory.streaming_efficiency", &P::memory, &MemoryProfile::streaming_efficiency, 0.85, 0.1, 1));
    all.push_back(figure("launch.dispatch_ns", &P::launch, &LaunchProfile::dispatch_ns, 10000, 1000, 30000));
  }
  if (has(rows, "cast")) all.push_back(relative_rate("vector.relative_rate.cast", {"cast"}, 0.5));
  return all;
}

void add_curve(std::vector<Figure>& all, const std::string& name, AttentionCurve AttentionProfile::*which) {
  const auto add = [&](const char* figure, double AttentionCurve::*what, double start, double least, double most) {
    all.push_back({"attention." + name + "." + figure,
                   [=](const HardwareProfile& p) { return p.attention.*which.*what; },
                   [=](HardwareProfile& p, double value) { p.attention.*which.*what = value; }, start, least, most});
  };
  add("efficiency", &AttentionCurve::efficiency, 0.7, 0, 1);
  add("half_rate_seq", &AttentionCurve::half_rate_seq, 500, 0, 20000);
  add("half_rate_head_dim", &AttentionCurve::half_rate_head_dim, 30, 0, 500);
  add("half_rate_waves", &AttentionCurve::half_rate_waves, 1, 0, 100);
}

std::vector<Figure> figures_of_libraries(const Rows& rows) {
  using P = HardwareProfile;
  std::vector<Figure> all;
  if (has(rows, Unit::kMatrix) || has(rows, Unit::kAttention)) {
    all.push_back(figure("launch.library_ns", &P::launch, &LaunchProfile::library_ns, 10000, 0, 30000));
  }
  if (has(rows, Unit::kMatrix)) {
    all.push_back(figure("matrix.efficiency", &P::matrix, &MatrixProfile::efficiency, 0.8, 0.1, 1));
    all.push_back(figure("matrix.half_rate_k", &P::matrix, &MatrixProfile::half_rate_k, 150, 0, 2000));
    all.push_back(figure("matrix.half_rate_tile", &P::matrix, &MatrixProfile::half_rate_tile, 5, 0, 200));
    all.push_back(figure("matrix.wave_quantisation", &P::matrix, &MatrixProfile::wave_quantisation, 0.8, 0, 1));
    // Products of few rows are bound by memory; forward's are measured, backward's are taken to be alike.
    all.push_back(relative_rate("vector.relative_rate.linear", {"linear", "linear_dx", "linear_dw"}, 0.9));
  }
  if (has(rows, "attention")) add_curve(all, "forward", &AttentionProfile::forward);
  if (has(rows, "attention_grad")) add_curve(all, "backward", &AttentionProfile::backward);
  return all;
}

double log_error(const TimeModel& model, const KernelTime& row) {
  return std::log(row.predicted_ns(model) / row.measured_ns);
}

double loss(const HardwareProfile& profile, const Rows& rows) {
  const TimeModel model(profile);
  double sum = 0;
  for (const KernelTime& row : rows) {
    const double error = std::fabs(log_error(model, row));
    sum += error + 4 * std::max(0.0, error - kLargeError);
  }
  return sum;
}

// The same on every machine, unlike std's distributions.
class Dice {
 public:
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  double bell() { return uniform() + uniform() + uniform() - 1.5; }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(uniform() * static_cast<double>(n)); }

 private:
  std::mt19937_64 engine_{1};
};

// Four digits are what the figures are worth.
double rounded(double value) { return parse_number<double>(fmt::format("{:.4g}", value)).value_or(value); }

void fit(HardwareProfile& best, const Rows& rows, const std::vector<Figure>& all, int steps) {
  if (all.empty()) return;
  for (const Figure& figure : all) figure.set(best, figure.start);
  double least = loss(best, rows);
  Dice dice;
  for (int step = 0; step < steps; ++step) {
    HardwareProfile tried = best;
    const double width = 0.3 * std::exp(-5.0 * step / steps);
    for (std::size_t changes = 1 + dice.below(3); changes > 0; --changes) {
      const Figure& figure = all[dice.below(all.size())];
      const double stepped = (figure.get(tried) + 1e-3) * std::exp(width * dice.bell()) - 1e-3;
      figure.set(tried, std::clamp(stepped, figure.least, figure.most));
    }
    if (const double now = loss(tried, rows); now < least) {
      least = now;
      best = std::move(tried);
    }
  }
  for (const Figure& figure : all) figure.set(best, rounded(figure.get(best)));
}

bool by_library(const KernelTime& row) { return row.cost.unit == Unit::kMatrix || row.cost.unit == Unit::kAttention; }

Rows rows_where(const Rows& rows, bool library) {
  Rows chosen;
  std::ranges::copy_if(rows, std::back_inserter(chosen), [&](const KernelTime& row) {
    return by_library(row) == library && row.cost.unit != Unit::kHostLink;
  });
  return chosen;
}

// A point for every product and attention that is not bound by memory.
void measure_points(HardwareProfile& profile, const Rows& rows) {
  const TimeModel formula(profile);
  for (const KernelTime& row : rows) {
    if (!by_library(row)) continue;
    Cost pass = row.cost;
    pass.unit = Unit::kCopy;
    pass.flops = 0;
    const double time =
        std::round(row.measured_ns - static_cast<double>(TimeModel::dispatch_ns(profile.launch, row.cost) +
                                                         profile.launch.kernel_launch_ns));
    if (time <= 1.2 * static_cast<double>(formula.work_ns("copy", pass))) continue;
    const Cost& c = row.cost;
    if (c.unit == Unit::kMatrix) {
      profile.measured.products.push_back({row.kernel, c.dtype, c.m, c.n, c.k, time});
    } else {
      profile.measured.attention.push_back({row.kernel, c.dtype, c.batch, c.n, c.k, time});
    }
  }
}

double error_without_own_point(HardwareProfile profile, const KernelTime& row) {
  const Cost& c = row.cost;
  std::erase_if(profile.measured.products, [&](const auto& p) {
    return p.kernel == row.kernel && p.dtype == c.dtype && p.m == c.m && p.n == c.n && p.k == c.k;
  });
  std::erase_if(profile.measured.attention, [&](const auto& p) {
    return p.kernel == row.kernel && p.dtype == c.dtype && p.heads == c.batch && p.seq == c.n && p.head_dim == c.k;
  });
  return std::exp(log_error(TimeModel(std::move(profile)), row)) - 1;
}

// The reach and weight with which measured kernels predict themselves and those that are left out best: a profile is
// asked for both.
void choose_reach(HardwareProfile& profile, const Rows& rows) {
  double least = std::numeric_limits<double>::infinity();
  HardwareProfile best = profile;
  for (const double reach : {0.3, 0.4, 0.5, 0.6, 0.75, 0.9, 1.0, 1.25, 1.5}) {
    for (const double weight : {2, 5, 10, 20, 50}) {
      HardwareProfile tried = profile;
      tried.measured.reach = reach;
      tried.measured.weight = weight;
      const TimeModel model(tried);
      double sum = 0;
      for (const KernelTime& row : rows) {
        sum += std::fabs(log_error(model, row)) + std::fabs(error_without_own_point(tried, row));
      }
      if (sum >= least) continue;
      least = sum;
      best = std::move(tried);
    }
  }
  profile = std::move(best);
}

struct HostRate {
  std::string_view name;
  double HostLinkProfile::*rate;
  device::WorkKind work;
  bool pinned;
};

constexpr std::array<HostRate, 4> kHostRates{
    {{"host_link.h2d_pinned_bytes_per_s", &HostLinkProfile::h2d_pinned_bytes_per_s, device::WorkKind::kH2D, true},
     {"host_link.d2h_pinned_bytes_per_s", &HostLinkProfile::d2h_pinned_bytes_per_s, device::WorkKind::kD2H, true},
     {"host_link.h2d_pageable_bytes_per_s", &HostLinkProfile::h2d_pageable_bytes_per_s, device::WorkKind::kH2D, false},
     {"host_link.d2h_pageable_bytes_per_s", &HostLinkProfile::d2h_pageable_bytes_per_s, device::WorkKind::kD2H,
      false}}};

void measure_host_link(HardwareProfile& profile, const Rows& rows) {
  for (const HostRate& rate : kHostRates) {
    const KernelTime* longest = nullptr;
    for (const KernelTime& row : rows) {
      const Cost& c = row.cost;
      if (c.unit != Unit::kHostLink || c.work != rate.work || c.pinned != rate.pinned) continue;
      if (longest == nullptr || c.read_bytes > longest->cost.read_bytes) longest = &row;
    }
    if (longest == nullptr) continue;
    const double time = longest->measured_ns - static_cast<double>(profile.host_link.latency_ns);
    if (time > 0)
      profile.host_link.*rate.rate = rounded(static_cast<double>(longest->cost.read_bytes) / time * kNsPerS);
  }
}

ErrorSummary summary(const std::vector<RowError>& rows, double RowError::*which) {
  std::vector<double> errors;
  for (const RowError& row : rows) errors.push_back(std::fabs(row.*which));
  std::ranges::sort(errors);
  return {errors[errors.size() / 2], errors.back()};
}

void tell_errors(FittedProfile& fitted, const Rows& rows) {
  const TimeModel model(fitted.profile);
  for (const KernelTime& row : rows) {
    fitted.rows.push_back({.row = row,
                           .predicted_ns = row.predicted_ns(model),
                           .with_own_point = std::exp(log_error(model, row)) - 1,
                           .without_own_point = error_without_own_point(fitted.profile, row)});
  }
  fitted.with_own_point = summary(fitted.rows, &RowError::with_own_point);
  fitted.without_own_point = summary(fitted.rows, &RowError::without_own_point);
}

void check(const HardwareProfile& base, const Rows& rows, std::size_t given, const FitOptions& options) {
  if (rows.empty()) {
    config_error("none of the {} kernels took {} us or longer, and shorter ones time the host; measure larger sizes",
                 given, options.least_ns / 1e3);
  }
  for (const KernelTime& row : rows) {
    if (!by_library(row) || base.matrix.peak_flops_per_s.contains(row.cost.dtype)) continue;
    config_error("{} is of {}, and profile '{}' has no peak_flops_per_s for it; add it to its matrix section",
                 row.label, name(row.cost.dtype), base.name);
  }
}

}  // namespace

FittedProfile fit_profile(const HardwareProfile& base, Rows rows, const FitOptions& options) {
  const std::size_t given = rows.size();
  std::erase_if(rows, [&](const KernelTime& row) { return row.measured_ns < options.least_ns; });
  check(base, rows, given, options);
  FittedProfile fitted;
  fitted.profile = base;
  fitted.left_out = static_cast<std::int64_t>(given - rows.size());
  HardwareProfile& profile = fitted.profile;
  profile.measured = {};
  std::vector<Figure> figures = figures_of_copies(rows), of_libraries = figures_of_libraries(rows);
  fit(profile, rows_where(rows, false), figures, options.steps);
  fit(profile, rows_where(rows, true), of_libraries, options.steps);
  measure_points(profile, rows);
  if (!profile.measured.products.empty() || !profile.measured.attention.empty()) choose_reach(profile, rows);
  measure_host_link(profile, rows);
  std::ranges::move(of_libraries, std::back_inserter(figures));
  for (const Figure& figure : figures) fitted.figures.push_back({figure.name, figure.get(base), figure.get(profile)});
  for (const HostRate& rate : kHostRates) {
    fitted.figures.push_back({std::string(rate.name), base.host_link.*rate.rate, profile.host_link.*rate.rate});
  }
  fitted.figures.push_back({"measured.reach", base.measured.reach, profile.measured.reach});
  fitted.figures.push_back({"measured.weight", base.measured.weight, profile.measured.weight});
  tell_errors(fitted, rows);
  return fitted;
}

}  // namespace loom::calibrate
