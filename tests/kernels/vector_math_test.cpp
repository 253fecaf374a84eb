// Promise: vector exp, sigmoid, tanh and erf are within a few units in the last place of the exact value, and treat NaN
//          and infinities as <cmath> does.
#include <bit>
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

// The largest error relative to the exact value over `count` steps of [low, high], as a power of two.
template <class Got, class Want>
double bits_of_error(double low, double high, int count, Got got, Want want) {
  double worst = 0;
  for (int i = 0; i <= count; ++i) {
    const auto x = static_cast<float>(low + (high - low) * i / count);
    const double exact = want(static_cast<double>(x));
    worst = std::max(worst, std::abs(got(simd::splat<F32x16>(static_cast<double>(x)))[0] / exact - 1));
  }
  return std::log2(worst);
}

constexpr auto kExp2Of4 = [](F32x16 x) { return simd::exp2<4>(x); };
constexpr auto kExp2Of5 = [](F32x16 x) { return simd::exp2<5>(x); };
constexpr auto kExpToBf16 = [](F32x16 x) { return simd::exp_to<bf16>(x); };
constexpr auto kSigmoidToBf16 = [](F32x16 x) { return simd::sigmoid_to<bf16>(x); };
constexpr auto kSigmoidOfSlope = [](F32x16 x) { return simd::sigmoid_of_slope<bf16>(x); };

TEST(VectorMath, ExpToBaseTwoHasTheBitsOfItsDegree) {
  const auto exact = [](double x) { return std::exp2(x); };
  EXPECT_LE(bits_of_error(-126, 127.9, 200001, kExp2Of4, exact), -18.3);
  EXPECT_LE(bits_of_error(-126, 127.9, 200001, kExp2Of5, exact), -22.3);
  for (int whole = -126; whole <= 127; ++whole) {
    const F32x16 x = simd::splat<F32x16>(whole);
    EXPECT_EQ(simd::exp2<4>(x)[0], std::exp2(static_cast<float>(whole)));
    EXPECT_EQ(simd::exp2<5>(x)[0], std::exp2(static_cast<float>(whole)));
  }
}

TEST(VectorMath, FunctionsThatRoundToBf16HaveMoreBitsThanIt) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  EXPECT_LE(bits_of_error(-40, 40, 200001, kExpToBf16, [](double x) { return std::exp(x); }), -17);
  EXPECT_LE(bits_of_error(-40, 40, 200001, kSigmoidToBf16, sigmoid), -13.8);
  EXPECT_LE(bits_of_error(-40, 40, 200001, kSigmoidOfSlope, sigmoid), -17);
}

TEST(VectorMath, FunctionsOfFewerBitsTreatInfinityAndNaNAsTheLibrary) {
  const F32x16 low = simd::splat<F32x16>(-std::numeric_limits<double>::infinity());
  const F32x16 high = -low;
  for (const F32x16& nothing : {simd::exp2<4>(low), simd::exp2<5>(low), simd::exp2<4>(simd::splat<F32x16>(-1e30)),
                                simd::sigmoid_to<bf16>(low), simd::sigmoid_of_slope<bf16>(low)}) {
    EXPECT_EQ(nothing[0], 0.0f);
  }
  for (const F32x16& all : {simd::exp2<4>(high), simd::exp2<5>(high), simd::exp2<4>(simd::splat<F32x16>(1e30))}) {
    EXPECT_EQ(all[0], kInfinity);
  }
  EXPECT_EQ(simd::sigmoid_of_slope<bf16>(high)[0], 1.0f);
  F32x16 v = simd::splat<F32x16>(1.0);
  v[3] = std::bit_cast<float>(0x7fc00001u);  // a NaN whose low bits would count as an exponent
  for (const F32x16& result :
       {simd::exp2<4>(v), simd::exp2<5>(v), simd::sigmoid_to<bf16>(v), simd::sigmoid_of_slope<bf16>(v)}) {
    EXPECT_TRUE(std::isnan(result[3]));
    EXPECT_FALSE(std::isnan(result[2]));
  }
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
