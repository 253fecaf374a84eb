// Values of a run that are not finite: weights before they are saved, and steps that continued after a loss or gradient
// norm of NaN or Inf (--no-check-for-nan-in-loss-and-grad). A gradient norm whose update a loss scaler skipped does not
// count.
//
// Threads  the rank's host thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/tensor/tensor.h"
#include "engine/train/step/step_observer.h"

namespace loom::train {

// Whether no element is NaN or infinite. The tensor has bytes on the host; integer dtypes are always finite.
bool all_finite(const Tensor& tensor);

// "NaN" or "Inf", as Megatron has them; none for a finite value.
std::optional<std::string> not_finite(double value);
// The value, with NaN stripped of the sign that processors give it, which would be printed.
double without_nan_sign(double value);

class FiniteWatch final : public StepObserver {
 public:
  void step_done(const StepMetrics& metrics) override;
  // The text for the end of the run; none if every loss and gradient norm was finite.
  std::optional<std::string> problem() const;

 private:
  std::int64_t steps_ = 0;
  std::int64_t bad_steps_ = 0;
  std::int64_t first_bad_ = 0;
};

}  // namespace loom::train
