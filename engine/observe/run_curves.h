// Loss and gradient norm of a run, step by step, and the comparison of two runs (shardloom compare).
//
// Sources   a metrics.jsonl; a folder with one; an event file of TensorBoard, or a folder with some, whose
//           tags are Megatron-LM's (lm loss, grad-norm) or torchtitan's (loss_metrics/global_avg_loss, grad_norm).
// Repeated  if a step occurs twice, after a resume, the later counts.
// Same      both values are null (not finite), or |b - a| <= tolerance * |a|. Without a tolerance, equal
//           numbers; if one of the runs is from event files, which hold floats, the other's values are rounded to float
//           first.
// Errors    ConfigError: a path of neither kind, a damaged file (metrics_file.h, io/event_file.h).
// Threads   any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace loom::observe {

// By step; none: not finite.
using Curve = std::map<std::int64_t, std::optional<double>>;

struct RunCurves {
  std::string source;   // the file, or the folder and the number of its files
  bool floats = false;  // values are floats, from event files
  Curve loss;
  Curve grad_norm;
  std::int64_t repeated = 0;  // values that a later one replaced
};

RunCurves read_run(const std::filesystem::path& path);

struct CurveComparison {
  struct Difference {
    std::int64_t step = 0;
    std::optional<double> a;
    std::optional<double> b;
  };

  std::int64_t common = 0;  // steps in both
  std::int64_t first = 0;   // of these
  std::int64_t last = 0;
  std::int64_t only_a = 0;  // steps
  std::int64_t only_b = 0;
  std::int64_t different = 0;  // steps in common that differ
  std::optional<Difference> first_difference;
  // |b - a| / |a| over the common steps where both are finite; infinite if a is 0 and b is not.
  double max_relative_error = 0;
  double mean_relative_error = 0;
  std::int64_t worst_step = 0;  // the step of the maximum
};

// `floats`: rounds both to float first.
CurveComparison compare_curves(const Curve& a, const Curve& b, double tolerance, bool floats);

}  // namespace loom::observe
