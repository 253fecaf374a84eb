#include "engine/cli/commands/compare_command.h"

#include <string_view>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/observe/run_curves.h"

namespace loom::cli {
namespace {

using observe::Curve;
using observe::CurveComparison;
using observe::RunCurves;

std::string count_text(std::int64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

// "4 steps, 1 to 4".
std::string steps_text(const Curve& curve) {
  if (curve.empty()) return "no steps";
  return fmt::format("{}, {} to {}", count_text(static_cast<std::int64_t>(curve.size()), "step"), curve.begin()->first,
                     curve.rbegin()->first);
}

std::string run_text(std::string_view name, const RunCurves& run) {
  std::string text = fmt::format("{}: {}: {}\n", name, escaped(run.source), steps_text(run.loss));
  if (run.repeated > 0) {
    text += fmt::format("{}: {} {} made again, as after a resume; the later count\n", name,
                        count_text(run.repeated, "value"), run.repeated == 1 ? "was" : "were");
  }
  return text;
}

std::string value_text(std::optional<double> value) { return value ? fmt::format("{}", *value) : "null"; }

std::string comparison_text(std::string_view figure, const CurveComparison& found) {
  const std::string errors = fmt::format(
      "relative error: largest {:.6g}{}, mean {:.6g}", found.max_relative_error,
      found.max_relative_error > 0 ? fmt::format(" at step {}", found.worst_step) : "", found.mean_relative_error);
  if (!found.first_difference)
    return fmt::format("{}: the same in {}; {}\n", figure, count_text(found.common, "step"), errors);
  const auto& first = *found.first_difference;
  return fmt::format("{}: differs in {} of {}, first at step {}: {} and {}; {}\n", figure, found.different,
                     count_text(found.common, "step"), first.step, value_text(first.a), value_text(first.b), errors);
}

void check_common(const RunCurves& a, const RunCurves& b, const CurveComparison& loss) {
  if (loss.common > 0) return;
  config_error("{} and {} have no step with a loss in common: {}, and {}; give two runs of the same steps", a.source,
               b.source, steps_text(a.loss), steps_text(b.loss));
}

std::string common_text(const CurveComparison& loss) {
  return fmt::format("in common: {}, {} to {}; only in A: {}; only in B: {}\n", count_text(loss.common, "step"),
                     loss.first, loss.last, loss.only_a, loss.only_b);
}

}  // namespace

int run_compare(const CompareArguments& arguments, std::ostream& out) {
  const RunCurves a = observe::read_run(arguments.a);
  const RunCurves b = observe::read_run(arguments.b);
  const bool floats = a.floats || b.floats;
  const CurveComparison loss = observe::compare_curves(a.loss, b.loss, arguments.tolerance, floats);
  check_common(a, b, loss);
  const CurveComparison norm = observe::compare_curves(a.grad_norm, b.grad_norm, arguments.tolerance, floats);
  out << run_text("A", a) << run_text("B", b) << common_text(loss) << comparison_text("loss", loss);
  out << (norm.common > 0 ? comparison_text("gradient norm", norm)
                          : "gradient norm: not compared, as no step has it in both\n");
  const bool same = loss.different == 0 && norm.different == 0;
  out << (same ? "the runs are the same" : "the runs differ");
  out << (arguments.tolerance > 0 ? fmt::format(" (--tolerance {})\n", arguments.tolerance) : "\n");
  return same ? 0 : 1;
}

}  // namespace loom::cli
