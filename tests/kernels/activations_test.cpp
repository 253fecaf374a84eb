// Promise: SwiGLU and both forms of GELU equal their definition to the rounding of the dtype; their gradients are the
//          derivatives.
#include <bit>
#include <gtest/gtest.h>
#include <limits>
#include <numbers>

#include "engine/kernels/fused.h"
#include "tests/kernels/fused_support.h"

namespace loom::kernels::testing {
namespace {

constexpr std::int64_t kSizes[] = {0, 1, 15, 16, 17, 1000, 65536 + 21};  // packs, and more than one tile

double silu(double z) { return z / (1 + std::exp(-z)); }
double gelu(GeluForm form, double x) {
  if (form == GeluForm::kErf) return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

Doubles swiglu_of(const Doubles& gate, const Doubles& up) {
  Doubles y(gate.size());
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = silu(gate[i]) * up[i];
  return y;
}
Doubles gelu_of(GeluForm form, Doubles x) {
  for (double& value : x) value = gelu(form, value);
  return x;
}

// normals() three times as wide, to reach the flat ends.
Buffer wide(DType dtype, std::int64_t elems, std::uint64_t stream) {
  Doubles values = normals(elems, stream);
  for (double& value : values) value *= 3;
  return Buffer(dtype, values);
}

TEST(Swiglu, EqualsItsDefinition) {
  for (DType dtype : kFloats) {
    for (std::int64_t elems : kSizes) {
      const Buffer gate = wide(dtype, elems, 1);
      const Buffer up = normal_buffer(dtype, elems, 2);
      Buffer y(dtype, static_cast<std::size_t>(elems));
      swiglu_forward(dtype, elems, gate.data(), up.data(), y.data());
      expect_close(dtype, y.values(), swiglu_of(gate.values(), up.values()), 8, 16);
    }
  }
}

std::pair<Doubles, Doubles> swiglu_gradients(DType dtype, const Buffer& gate, const Buffer& up, const Buffer& dy) {
  const std::size_t elems = gate.values().size();
  Buffer dgate(dtype, elems), dup(dtype, elems);
  swiglu_backward(dtype, static_cast<std::int64_t>(elems), gate.data(), up.data(), dy.data(), dgate.data(), dup.data());
  return {dgate.values(), dup.values()};
}

TEST(Swiglu, GradientsAreTheDerivatives) {
  const Buffer gate = wide(DType::kF64, 50, 1);
  const Buffer up = normal_buffer(DType::kF64, 50, 2);
  const Buffer dy = normal_buffer(DType::kF64, 50, 3);
  const auto [dgate, dup] = swiglu_gradients(DType::kF64, gate, up, dy);
  expect_gradient(gate.values(), dgate,
                  [&](const Doubles& at) { return dot(swiglu_of(at, up.values()), dy.values()); });
  expect_gradient(up.values(), dup, [&](const Doubles& at) { return dot(swiglu_of(gate.values(), at), dy.values()); });
}

TEST(Swiglu, GradientsOfEveryDtypeEqualThoseOfFp64) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (std::int64_t elems : kSizes) {
      const Buffer gate = wide(dtype, elems, 1);
      const Buffer up = normal_buffer(dtype, elems, 2);
      const Buffer dy = normal_buffer(dtype, elems, 3);
      const auto got = swiglu_gradients(dtype, gate, up, dy);
      const auto want = swiglu_gradients(DType::kF64, Buffer(DType::kF64, gate.values()),
                                         Buffer(DType::kF64, up.values()), Buffer(DType::kF64, dy.values()));
      expect_close(dtype, got.first, want.first, 16, 16);
      expect_close(dtype, got.second, want.second, 16, 16);
    }
  }
}

constexpr GeluForm kForms[] = {GeluForm::kTanh, GeluForm::kErf};

TEST(Gelu, EqualsItsDefinition) {
  for (GeluForm form : kForms) {
    for (DType dtype : kFloats) {
      for (std::int64_t elems : kSizes) {
        const Buffer x = wide(dtype, elems, 1);
        Buffer y(dtype, static_cast<std::size_t>(elems));
        gelu_forward(dtype, form, elems, x.data(), y.data());
        expect_close(dtype, y.values(), gelu_of(form, x.values()), 8, 8);
      }
    }
  }
}

Doubles gelu_gradient(DType dtype, GeluForm form, const Buffer& x, const Buffer& dy) {
  Buffer dx(dtype, x.values().size());
  gelu_backward(dtype, form, static_cast<std::int64_t>(x.values().size()), x.data(), dy.data(), dx.data());
  return dx.values();
}

TEST(Gelu, GradientIsTheDerivative) {
  for (GeluForm form : kForms) {
    const Buffer x = wide(DType::kF64, 50, 1);
    const Buffer dy = normal_buffer(DType::kF64, 50, 3);
    expect_gradient(x.values(), gelu_gradient(DType::kF64, form, x, dy),
                    [&](const Doubles& at) { return dot(gelu_of(form, at), dy.values()); });
  }
}

TEST(Gelu, GradientOfEveryDtypeEqualsThatOfFp64) {
  for (GeluForm form : kForms) {
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (std::int64_t elems : kSizes) {
        const Buffer x = wide(dtype, elems, 1);
        const Buffer dy = normal_buffer(dtype, elems, 3);
        expect_close(
            dtype, gelu_gradient(dtype, form, x, dy),
            gelu_gradient(DType::kF64, form, Buffer(DType::kF64, x.values()), Buffer(DType::kF64, dy.values())), 16,
            16);
      }
    }
  }
}

// Every finite bf16, in an array that begins with `ahead` zeros: each number's lane and pack follow from it.
Buffer every_finite_bf16(std::size_t ahead) {
  Doubles values(ahead, 0.0);
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto value = static_cast<float>(std::bit_cast<bf16>(static_cast<std::uint16_t>(bits)));
    if (std::isfinite(value)) values.push_back(value);
  }
  return Buffer(DType::kBF16, values);
}

// Distance of bf16 neighbours at `value`.
double bf16_unit(double value) {
  return value == 0 ? 0x1p-133 : std::max(std::ldexp(1.0, std::ilogb(value) - 7), 0x1p-133);
}

TEST(Activations, InBf16AreWithinALittleMoreThanHalfAUnitForEveryInput) {
  const Buffer x = every_finite_bf16(0);
  const auto elems = static_cast<std::int64_t>(x.values().size());
  const Buffer one(DType::kBF16, Doubles(x.values().size(), 1.0));
  Buffer silu_of(DType::kBF16, x.values().size()), gelu_of(DType::kBF16, x.values().size());
  swiglu_forward(DType::kBF16, elems, x.data(), one.data(), silu_of.data());
  gelu_forward(DType::kBF16, GeluForm::kTanh, elems, x.data(), gelu_of.data());
  const Doubles at = x.values(), silu_got = silu_of.values(), gelu_got = gelu_of.values();
  constexpr double kUnits = 0.53, kFlushed = 0x1p-120;  // a gate below the least normal number may be 0
  for (std::size_t i = 0; i < at.size(); ++i) {
    const double silu_want = silu(at[i]);
    ASSERT_NEAR(silu_got[i], silu_want, kUnits * bf16_unit(silu_want) + kFlushed) << at[i];
    double gelu_want = 0;
    gelu_forward(DType::kF64, GeluForm::kTanh, 1, &at[i], &gelu_want);
    ASSERT_NEAR(gelu_got[i], gelu_want, kUnits * bf16_unit(gelu_want) + kFlushed) << at[i];
  }
}

TEST(Activations, BitsDoNotDependOnThePlaceInTheArray) {
  const std::size_t count = every_finite_bf16(0).values().size();
  const auto results = [&](DType dtype, std::size_t ahead) {
    const Buffer x(dtype, every_finite_bf16(ahead).values());
    const auto elems = static_cast<std::int64_t>(count + ahead);
    std::vector<std::vector<std::byte>> outputs;
    for (int i = 0; i < 5; ++i) {
      Buffer y(dtype, count + ahead), beside(dtype, count + ahead);
      if (i == 0) swiglu_forward(dtype, elems, x.data(), x.data(), y.data());
      if (i == 1) swiglu_backward(dtype, elems, x.data(), x.data(), x.data(), y.data(), beside.data());
      if (i == 2) swiglu_backward(dtype, elems, x.data(), x.data(), x.data(), beside.data(), y.data());
      if (i == 3) gelu_forward(dtype, GeluForm::kTanh, elems, x.data(), y.data());
      if (i == 4) gelu_backward(dtype, GeluForm::kTanh, elems, x.data(), x.data(), y.data());
      const auto skip = static_cast<std::ptrdiff_t>(ahead) * static_cast<std::ptrdiff_t>(element_bytes(dtype));
      outputs.emplace_back(y.bytes().begin() + skip, y.bytes().end());
    }
    return outputs;
  };
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const auto first = results(dtype, 0);
    for (std::size_t ahead : {1u, 16u, 37u, 48u}) EXPECT_TRUE(results(dtype, ahead) == first) << name(dtype) << ahead;
  }
}

TEST(Activations, NaNAndInfinityComeThrough) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Doubles special{std::numeric_limits<double>::quiet_NaN(), kInfinity, 1.0};
  for (DType dtype : kFloats) {
    const Buffer x(dtype, special);
    const Buffer one(dtype, Doubles(3, 1.0));
    Buffer y(dtype, 3);
    swiglu_forward(dtype, 3, x.data(), one.data(), y.data());
    EXPECT_TRUE(std::isnan(y.values()[0]));
    EXPECT_EQ(y.values()[1], kInfinity);
    for (GeluForm form : kForms) {
      gelu_forward(dtype, form, 3, x.data(), y.data());
      EXPECT_TRUE(std::isnan(y.values()[0]));
      EXPECT_EQ(y.values()[1], kInfinity);
      EXPECT_FALSE(std::isnan(y.values()[2]));
    }
  }
}

}  // namespace
}  // namespace loom::kernels::testing
