// Fits the figures of a device profile to measured kernels.
//
// usage: fit_profile PROFILE.yaml KERNEL_TIMES.json
//
// Fitted   to copies and casts: memory.streaming_efficiency, vector.relative_rate.cast, launch.dispatch_ns; then to
//          products and attention: launch.library_ns, matrix (efficiency, half_rate_k, half_rate_tile,
//          wave_quantisation), relative_rate of products, both curves of attention; then `measured`, its reach and
//          weight by every row with and without its own point. Everything else is the profile's.
// Method   random steps from fixed starting values, kept when the sum of |log(predicted / measured)| falls; errors
//          above 8 % count five times. A fixed seed: the same figures every time. Rows under 44 us time the dispatch
//          (the host records the second event no sooner) and are left out.
// Prints   the figures as they stand in the profile, then the error of every row with and without its own point.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fmt/format.h>
#include <functional>
#include <limits>
#include <random>

#include "engine/virtual_time/profile_file.h"
#include "tests/support/kernel_times.h"

namespace {

using loom::device::Unit;
using loom::test::KernelRow;
using loom::virtual_time::AttentionCurve;
using loom::virtual_time::HardwareProfile;
using loom::virtual_time::TimeModel;

constexpr double kLeastMeasuredNs = 44e3;

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

std::vector<Figure> figures_of_copies() {
  using P = HardwareProfile;
  return {figure("memory.streaming_efficiency", &P::memory, &loom::virtual_time::MemoryProfile::streaming_efficiency,
                 0.85, 0.1, 1),
          figure("launch.dispatch_ns", &P::launch, &loom::virtual_time::LaunchProfile::dispatch_ns, 10000, 1000, 30000),
          {"vector.relative_rate.cast", [](const P& p) { return p.vector.relative_rate.at("cast"); },
           [](P& p, double value) { p.vector.relative_rate["cast"] = value; }, 0.5, 0.1, 2}};
}

void add_curve(std::vector<Figure>& all, const std::string& name,
               AttentionCurve loom::virtual_time::AttentionProfile::*which) {
  const auto add = [&](const char* figure, double AttentionCurve::*what, double start, double most) {
    all.push_back({"attention." + name + "." + figure,
                   [=](const HardwareProfile& p) { return p.attention.*which.*what; },
                   [=](HardwareProfile& p, double value) { p.attention.*which.*what = value; }, start, 0, most});
  };
  add("efficiency", &AttentionCurve::efficiency, 0.7, 1);
  add("half_rate_seq", &AttentionCurve::half_rate_seq, 500, 20000);
  add("half_rate_head_dim", &AttentionCurve::half_rate_head_dim, 30, 500);
  add("half_rate_waves", &AttentionCurve::half_rate_waves, 1, 100);
}

std::vector<Figure> figures_of_libraries() {
  using P = HardwareProfile;
  using M = loom::virtual_time::MatrixProfile;
  std::vector<Figure> all{
      figure("launch.library_ns", &P::launch, &loom::virtual_time::LaunchProfile::library_ns, 10000, 0, 30000),
      figure("matrix.efficiency", &P::matrix, &M::efficiency, 0.8, 0.1, 1),
      figure("matrix.half_rate_k", &P::matrix, &M::half_rate_k, 150, 0, 2000),
      figure("matrix.half_rate_tile", &P::matrix, &M::half_rate_tile, 5, 0, 200),
      figure("matrix.wave_quantisation", &P::matrix, &M::wave_quantisation, 0.8, 0, 1)};
  // Products of few rows are bound by memory; forward's were measured, backward's are taken to be alike.
  all.push_back({"vector.relative_rate.linear, linear_dx, linear_dw",
                 [](const P& p) { return p.vector.relative_rate.at("linear"); },
                 [](P& p, double value) {
                   for (const char* kernel : {"linear", "linear_dx", "linear_dw"})
                     p.vector.relative_rate[kernel] = value;
                 },
                 0.9, 0.1, 2});
  add_curve(all, "forward", &loom::virtual_time::AttentionProfile::forward);
  add_curve(all, "backward", &loom::virtual_time::AttentionProfile::backward);
  return all;
}

double log_error(const TimeModel& model, const KernelRow& row) {
  return std::log(row.predicted_ns(model) / row.measured_ns);
}

double loss(const HardwareProfile& profile, const std::vector<KernelRow>& rows) {
  const TimeModel model(profile);
  double sum = 0;
  for (const KernelRow& row : rows) {
    const double error = std::fabs(log_error(model, row));
    sum += error + 4 * std::max(0.0, error - 0.08);
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
double rounded(double value) { return std::stod(fmt::format("{:.4g}", value)); }

void fit(HardwareProfile& best, const std::vector<KernelRow>& rows, const std::vector<Figure>& all) {
  constexpr int kSteps = 40000;
  for (const Figure& figure : all) figure.set(best, figure.start);
  double least = loss(best, rows);
  Dice dice;
  for (int step = 0; step < kSteps; ++step) {
    HardwareProfile tried = best;
    const double width = 0.3 * std::exp(-5.0 * step / kSteps);
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

bool by_library(const KernelRow& row) { return row.cost.unit == Unit::kMatrix || row.cost.unit == Unit::kAttention; }

std::vector<KernelRow> rows_where(const std::vector<KernelRow>& rows, bool library) {
  std::vector<KernelRow> chosen;
  std::ranges::copy_if(rows, std::back_inserter(chosen), [&](const KernelRow& row) {
    return by_library(row) == library && row.cost.unit != Unit::kHostLink;
  });
  return chosen;
}

// A point for every product and attention that is not bound by memory.
void measure_points(HardwareProfile& profile, const std::vector<KernelRow>& rows) {
  const TimeModel formula(profile);
  for (const KernelRow& row : rows) {
    if (!by_library(row)) continue;
    loom::device::Cost pass = row.cost;
    pass.unit = Unit::kCopy;
    pass.flops = 0;
    const double time =
        std::round(row.measured_ns - static_cast<double>(TimeModel::dispatch_ns(profile.launch, row.cost) +
                                                         profile.launch.kernel_launch_ns));
    if (time <= 1.2 * static_cast<double>(formula.work_ns("copy", pass))) continue;
    const loom::device::Cost& c = row.cost;
    if (c.unit == Unit::kMatrix) {
      profile.measured.products.push_back({row.kernel, c.dtype, c.m, c.n, c.k, time});
    } else {
      profile.measured.attention.push_back({row.kernel, c.dtype, c.batch, c.n, c.k, time});
    }
  }
}

void print_figures(const HardwareProfile& profile, const std::vector<Figure>& all) {
  for (const Figure& figure : all) fmt::print("{}: {:g}\n", figure.name, figure.get(profile));
}

void print_points(const HardwareProfile& profile) {
  fmt::print("measured.reach: {:g}\nmeasured.weight: {:g}\nmeasured:\n  products:\n", profile.measured.reach,
             profile.measured.weight);
  for (const auto& p : profile.measured.products) {
    fmt::print("    - {{kernel: {}, dtype: {}, m: {}, n: {}, k: {}, time_ns: {:.0f}}}\n", p.kernel, loom::name(p.dtype),
               p.m, p.n, p.k, p.time_ns);
  }
  fmt::print("  attention:\n");
  for (const auto& p : profile.measured.attention) {
    fmt::print("    - {{kernel: {}, dtype: {}, heads: {}, seq: {}, head_dim: {}, time_ns: {:.0f}}}\n", p.kernel,
               loom::name(p.dtype), p.heads, p.seq, p.head_dim, p.time_ns);
  }
}

// Without its own point a row says how well the profile does at a shape it has never seen.
double error_without_own_point(HardwareProfile profile, const KernelRow& row) {
  const loom::device::Cost& c = row.cost;
  std::erase_if(profile.measured.products,
                [&](const auto& p) { return p.kernel == row.kernel && p.m == c.m && p.n == c.n && p.k == c.k; });
  std::erase_if(profile.measured.attention, [&](const auto& p) {
    return p.kernel == row.kernel && p.heads == c.batch && p.seq == c.n && p.head_dim == c.k;
  });
  return std::exp(log_error(TimeModel(std::move(profile)), row)) - 1;
}

// The reach and weight with which measured kernels predict themselves and those that are left out best: a profile is
// asked for both.
void choose_reach(HardwareProfile& profile, const std::vector<KernelRow>& rows) {
  double least = std::numeric_limits<double>::infinity();
  HardwareProfile best = profile;
  for (const double reach : {0.3, 0.4, 0.5, 0.6, 0.75, 0.9, 1.0, 1.25, 1.5}) {
    for (const double weight : {2, 5, 10, 20, 50}) {
      HardwareProfile tried = profile;
      tried.measured.reach = reach;
      tried.measured.weight = weight;
      const TimeModel model(tried);
      double sum = 0;
      for (const KernelRow& row : rows) {
        sum += std::fabs(log_error(model, row)) + std::fabs(error_without_own_point(tried, row));
      }
      if (sum >= least) continue;
      least = sum;
      best = std::move(tried);
    }
  }
  profile = std::move(best);
}

void print_errors(const HardwareProfile& profile, const std::vector<KernelRow>& rows) {
  const TimeModel model(profile);
  std::vector<double> with, without;
  for (const KernelRow& row : rows) {
    with.push_back(std::exp(log_error(model, row)) - 1);
    without.push_back(error_without_own_point(profile, row));
    fmt::print("{:<44} {:>9.1f} us {:>+7.1f} % {:>+7.1f} %\n", row.label, row.measured_ns / 1e3, 100 * with.back(),
               100 * without.back());
  }
  for (std::vector<double>* errors : {&with, &without}) {
    std::ranges::sort(*errors, {}, [](double e) { return std::fabs(e); });
    fmt::print("{}: median {:.1f} %, worst {:.1f} %\n", errors == &with ? "with its own point" : "without",
               100 * std::fabs((*errors)[errors->size() / 2]), 100 * std::fabs(errors->back()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: fit_profile PROFILE.yaml KERNEL_TIMES.json\n");
    return 2;
  }
  try {
    HardwareProfile profile = loom::virtual_time::load_profile(argv[1]);
    std::vector<KernelRow> rows = loom::test::read_kernel_rows(argv[2]);
    std::erase_if(rows, [](const KernelRow& row) { return row.measured_ns < kLeastMeasuredNs; });
    profile.measured.products.clear();
    profile.measured.attention.clear();
    fit(profile, rows_where(rows, false), figures_of_copies());
    fit(profile, rows_where(rows, true), figures_of_libraries());
    measure_points(profile, rows);
    choose_reach(profile, rows);
    print_figures(profile, figures_of_copies());
    print_figures(profile, figures_of_libraries());
    print_points(profile);
    print_errors(profile, rows);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
