// Promise: a NaN or an infinity is found in weights of every floating dtype, wherever it stands, and in the figures of
//          a run.
#include "engine/train/finite.h"

#include <gtest/gtest.h>
#include <limits>

namespace loom::train {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Tensor with(DType dtype, double value) {
  const Tensor values = Tensor::host({3}, DType::kF64, "values");
  values.data<double>()[0] = -65504;  // the largest of fp16
  values.data<double>()[1] = 0;
  values.data<double>()[2] = value;
  const Tensor converted = Tensor::host({3}, dtype, "converted");
  converted.copy_from(values);
  return converted;
}

StepMetrics figures(std::int64_t step, double loss, double grad_norm) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = loss;
  metrics.grad_norm = grad_norm;
  return metrics;
}

TEST(AllFinite, FindsNaNAndInfinityInEveryFloatingDtype) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
    EXPECT_TRUE(all_finite(with(dtype, 1e-5))) << name(dtype);
    for (const double bad : {kNaN, kInf, -kInf}) EXPECT_FALSE(all_finite(with(dtype, bad))) << name(dtype) << bad;
  }
}

TEST(NotFinite, IsNamedAsMegatronNamesIt) {
  EXPECT_EQ(not_finite(kNaN), "NaN");
  EXPECT_EQ(not_finite(-kInf), "Inf");
  EXPECT_EQ(not_finite(1e300), std::nullopt);
}

TEST(FiniteWatch, CountsTheStepsAndNamesTheFirst) {
  FiniteWatch watch;
  watch.step_done(figures(1, 1.0, 1.0));
  EXPECT_EQ(watch.problem(), std::nullopt);
  watch.step_done(figures(2, 1.0, kInf));
  watch.step_done(figures(3, kNaN, 1.0));
  EXPECT_EQ(watch.problem(), "2 of 3 steps had a loss or gradient norm that is not finite, step 2 first");
}

TEST(FiniteWatch, AnOverflowThatALossScalerHandledIsNoProblem) {
  FiniteWatch watch;
  StepMetrics overflow = figures(1, 1.0, kInf);
  overflow.skipped = true;
  watch.step_done(overflow);
  EXPECT_EQ(watch.problem(), std::nullopt);
  overflow.loss = kNaN;
  watch.step_done(overflow);
  EXPECT_EQ(watch.problem(), "1 of 2 steps had a loss or gradient norm that is not finite, step 1 first");
}

}  // namespace
}  // namespace loom::train
