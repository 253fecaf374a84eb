// Fits the figures of a device profile to measured kernels.
//
// Fitted   each as far as its kernels were measured. To copies and casts: memory.streaming_efficiency,
//          launch.dispatch_ns, vector.relative_rate.cast; then to products and attention: launch.library_ns, matrix
//          (efficiency, half_rate_k, half_rate_tile, wave_quantisation), relative_rate of products, the curves of
//          attention; then `measured`, its reach and weight by every row with and without its own point. The rates of
//          host_link follow from the longest copy of each kind. Everything else is the base's.
// Method   random steps from fixed starting values, kept when the sum of |log(predicted / measured)| falls; errors
//          above 8 % count five times. A fixed seed: the same figures every time and on every machine.
// Short    rows time the dispatch (the host records the second event no sooner) and are left out.
// Errors   ConfigError if no row is left, or if the base has no peak for a dtype.
// Threads  one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/calibrate/kernel_times.h"

namespace loom::calibrate {

struct FitOptions {
  double least_ns = 44e3;  // of a row; shorter ones are left out
  int steps = 40'000;      // of each of the two fits
};

// Of a row that was used: predicted / measured - 1.
struct RowError {
  KernelTime row;
  double predicted_ns = 0;
  double with_own_point = 0;
  double without_own_point = 0;  // how well the profile does at a shape that it has never seen
};

// Of all rows, as absolute values.
struct ErrorSummary {
  double median = 0;
  double worst = 0;
};

struct FittedFigure {
  std::string name;  // "matrix.efficiency"
  double base = 0;
  double fitted = 0;
};

struct FittedProfile {
  virtual_time::HardwareProfile profile;
  std::vector<FittedFigure> figures;  // without the points of `measured`
  std::vector<RowError> rows;         // in the order of the file
  std::int64_t left_out = 0;          // rows
  ErrorSummary with_own_point;
  ErrorSummary without_own_point;
};

FittedProfile fit_profile(const virtual_time::HardwareProfile& base, std::vector<KernelTime> rows,
                          const FitOptions& options = {});

}  // namespace loom::calibrate
