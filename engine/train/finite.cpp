#include "engine/train/finite.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fmt/core.h>
#include <limits>
#include <span>

namespace loom::train {
namespace {

// A number is not finite when all bits of its exponent are set.
template <class Bits>
bool finite_bits(const Tensor& tensor, Bits exponent) {
  const std::span values(static_cast<const Bits*>(tensor.raw()), static_cast<std::size_t>(tensor.numel()));
  return std::ranges::none_of(values, [=](Bits value) { return (value & exponent) == exponent; });
}

}  // namespace

bool all_finite(const Tensor& tensor) {
  switch (tensor.dtype()) {
    case DType::kF64:
      return finite_bits<std::uint64_t>(tensor, 0x7FF0'0000'0000'0000);
    case DType::kF32:
      return finite_bits<std::uint32_t>(tensor, 0x7F80'0000);
    case DType::kBF16:
      return finite_bits<std::uint16_t>(tensor, 0x7F80);
    case DType::kF16:
      return finite_bits<std::uint16_t>(tensor, 0x7C00);
    default:
      return true;
  }
}

std::optional<std::string> not_finite(double value) {
  if (std::isfinite(value)) return std::nullopt;
  return std::isnan(value) ? "NaN" : "Inf";
}

double without_nan_sign(double value) { return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value; }

void FiniteWatch::step_done(const StepMetrics& metrics) {
  ++steps_;
  const bool overflow_was_handled = metrics.skipped && !std::isfinite(metrics.grad_norm);
  if (std::isfinite(metrics.loss) && (std::isfinite(metrics.grad_norm) || overflow_was_handled)) return;
  if (bad_steps_++ == 0) first_bad_ = metrics.step;
}

std::optional<std::string> FiniteWatch::problem() const {
  if (bad_steps_ == 0) return std::nullopt;
  return fmt::format("{} of {} steps had a loss or gradient norm that is not finite, step {} first", bad_steps_, steps_,
                     first_bad_);
}

}  // namespace loom::train
