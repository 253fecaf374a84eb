// Promise: vector exp, sigmoid, tanh and erf are within a few units in the last place of the exact value, and treat NaN
//          and infinities as <cmath> does.
#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "engine/kernels/simd.h"

namespace loom::kernels {
namespace {

using simd::F32x16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Distance of fp32 neighbours at `value`; subnormals are evenly spaced.
double unit_in_last_place(double value) { return std::max(std::ldexp(1.0, std::ilogb(value) - 23), 0x1p-149); }

// The largest error over `count` steps of [low, high], in units of the last place.
template <class Got, class Want>
double worst_error(double low, double high, int count, Got got, Want want) {
  double worst = 0;
  for (int i = 0; i <= count; ++i) {
    const auto x = static_cast<float>(low + (high - low) * i / count);
    const double exact = want(static_cast<double>(x));
    const F32x16 value = got(simd::splat<F32x16>(static_cast<double>(x)));
    const double error =
        exact == 0 ? std::abs(double{value[0]}) / 0x1p-149 : std::abs(value[0] - exact) / unit_in_last_place(exact);
    worst = std::max(worst, error);
  }
  return worst;
}

constexpr auto kExp = [](F32x16 x) { return simd::exp(x); };
constexpr auto kSigmoid = [](F32x16 x) { return simd::sigmoid(x); };
constexpr auto kTanh = [](F32x16 x) { return simd::tanh(x); };
constexpr auto kErf = [](F32x16 x) { return simd::erf(x); };

TEST(VectorMath, ExpIsWithinTwoUnits) {
  const auto exact = [](double x) { return std::exp(x); };
  EXPECT_LE(worst_error(-87, 88.7, 200001, kExp, exact), 2);
  EXPECT_LE(worst_error(-1, 1, 200001, kExp, exact), 2);
  EXPECT_LE(worst_error(-103.9, -87, 20001, kExp, exact), 2) << "subnormal results";
}

TEST(VectorMath, SigmoidIsWithinFourUnits) {
  EXPECT_LE(worst_error(-80, 30, 200001, kSigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }), 4);
}

TEST(VectorMath, TanhIsWithinFourUnits) {
  const auto exact = [](double x) { return std::tanh(x); };
  EXPECT_LE(worst_error(-12, 12, 200001, kTanh, exact), 4);
  EXPECT_LE(worst_error(-1e-3, 1e-3, 20001, kTanh, exact), 4);
}

TEST(VectorMath, ErfIsWithinFourUnits) {
  const auto exact = [](double x) { return std::erf(x); };
  EXPECT_LE(worst_error(-5, 5, 200001, kErf, exact), 4);
  EXPECT_LE(worst_error(-1e-3, 1e-3, 20001, kErf, exact), 4);
}

TEST(VectorMath, EndsOfTheRangeAreThoseOfTheLibrary) {
  for (float x : {-kInfinity, -1e30f, -200.0f, -0.0f, 0.0f, 200.0f, 1e30f, kInfinity}) {
    const F32x16 v = simd::splat<F32x16>(static_cast<double>(x));
    EXPECT_EQ(simd::exp(v)[0], std::exp(x)) << x;
    EXPECT_EQ(simd::sigmoid(v)[0], 1 / (1 + std::exp(-x))) << x;
    EXPECT_EQ(simd::tanh(v)[0], std::tanh(x)) << x;
    EXPECT_EQ(simd::erf(v)[0], std::erf(x)) << x;
  }
}

TEST(VectorMath, NaNComesThrough) {
  F32x16 v = simd::splat<F32x16>(1.0);
  v[3] = kNaN;
  for (const F32x16& result : {simd::exp(v), simd::sigmoid(v), simd::tanh(v), simd::erf(v), simd::sqrt(v)}) {
    EXPECT_TRUE(std::isnan(result[3]));
    EXPECT_FALSE(std::isnan(result[2]));
  }
}

TEST(VectorMath, LanesAreAddedByHalves) {
  F32x16 v{};
  v[0] = 0x1p24f;  // swallows a lone 1 added to it
  v[1] = 1;
  v[9] = 1;  // meets lane 1 first: (1 + 1) then survives
  EXPECT_EQ(simd::sum_lanes(v), 0x1p24f + 2);
}

}  // namespace
}  // namespace loom::kernels
