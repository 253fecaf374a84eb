// Promise: RMSNorm and LayerNorm equal their definition to the rounding of the dtype; their gradients are the
//          derivatives.
#include <gtest/gtest.h>
#include <limits>

#include "engine/kernels/fused.h"
#include "tests/kernels/fused_support.h"

namespace loom::kernels::testing {
namespace {

constexpr double kEps = 1e-5;

struct Sizes {
  std::int64_t rows, dim;
};
// Below, at and above a pack of 16 lanes and an unrolled 64; more rows than one tile of partial sums.
constexpr Sizes kSizes[] = {{1, 1}, {3, 15}, {2, 16}, {5, 17}, {37, 129}, {70, 64}};

struct Norm {
  Doubles y, mean, rstd;
};

Norm reference(bool centred, Sizes n, const Doubles& x, const Doubles& weight, const Doubles& bias) {
  Norm result;
  for (std::int64_t row = 0; row < n.rows; ++row) {
    const double* in = x.data() + row * n.dim;
    double mean = 0;
    for (std::int64_t i = 0; centred && i < n.dim; ++i) mean += in[i] / static_cast<double>(n.dim);
    double variance = 0;
    for (std::int64_t i = 0; i < n.dim; ++i) variance += (in[i] - mean) * (in[i] - mean) / static_cast<double>(n.dim);
    const double rstd = 1 / std::sqrt(variance + kEps);
    result.mean.push_back(mean);
    result.rstd.push_back(rstd);
    for (std::int64_t i = 0; i < n.dim; ++i) {
      const auto at = static_cast<std::size_t>(i);
      result.y.push_back((in[i] - mean) * rstd * weight[at] + (bias.empty() ? 0 : bias[at]));
    }
  }
  return result;
}

TEST(RmsNorm, EqualsItsDefinition) {
  for (DType dtype : kFloats) {
    for (Sizes n : kSizes) {
      const Buffer x = normal_buffer(dtype, n.rows * n.dim, 1);
      const Buffer weight = normal_buffer(dtype, n.dim, 2);
      Buffer y(dtype, static_cast<std::size_t>(n.rows * n.dim));
      Buffer rstd(stat_dtype(dtype), static_cast<std::size_t>(n.rows));
      rms_norm_forward({dtype, n.rows, n.dim, kEps}, x.data(), weight.data(), y.data(), rstd.data());
      const Norm want = reference(false, n, x.values(), weight.values(), {});
      expect_close(dtype, y.values(), want.y, 12, 4);
      for (std::size_t row = 0; row < want.rstd.size(); ++row) {
        EXPECT_NEAR(rstd.values()[row] / want.rstd[row], 1, 10 * rounding(stat_dtype(dtype)));
      }
    }
  }
}

TEST(LayerNorm, EqualsItsDefinition) {
  for (DType dtype : kFloats) {
    for (Sizes n : kSizes) {
      if (n.dim == 1) continue;  // variance 0: y is the bias, tested below
      const Buffer x = normal_buffer(dtype, n.rows * n.dim, 1);
      const Buffer weight = normal_buffer(dtype, n.dim, 2);
      const Buffer bias = normal_buffer(dtype, n.dim, 3);
      Buffer y(dtype, static_cast<std::size_t>(n.rows * n.dim));
      Buffer mean(stat_dtype(dtype), static_cast<std::size_t>(n.rows));
      Buffer rstd(stat_dtype(dtype), static_cast<std::size_t>(n.rows));
      layer_norm_forward({dtype, n.rows, n.dim, kEps}, x.data(), weight.data(), bias.data(), y.data(), mean.data(),
                         rstd.data());
      const Norm want = reference(true, n, x.values(), weight.values(), bias.values());
      expect_close(dtype, y.values(), want.y, 16, 8);
      expect_close(stat_dtype(dtype), mean.values(), want.mean, 8);
    }
  }
}

TEST(LayerNorm, OfARowWithoutVarianceIsTheBias) {
  const Doubles x(20, 3.0);
  const Doubles weight(20, 2.0);
  const Doubles bias = normals(20, 3);
  Doubles y(20), mean(1), rstd(1);
  layer_norm_forward({DType::kF64, 1, 20, kEps}, x.data(), weight.data(), bias.data(), y.data(), mean.data(),
                     rstd.data());
  EXPECT_EQ(y, bias);
  EXPECT_EQ(mean[0], 3.0);
}

struct Gradients {
  Doubles dx, dweight, dbias;
};

Gradients rms_gradients(DType dtype, Sizes n, const Buffer& x, const Buffer& weight, const Buffer& dy,
                        void* add_dx_to = nullptr) {
  Buffer y(dtype, static_cast<std::size_t>(n.rows * n.dim)), dx = y, dweight(dtype, static_cast<std::size_t>(n.dim));
  Buffer rstd(stat_dtype(dtype), static_cast<std::size_t>(n.rows));
  rms_norm_forward({dtype, n.rows, n.dim, kEps}, x.data(), weight.data(), y.data(), rstd.data());
  rms_norm_backward({dtype, n.rows, n.dim, 0, add_dx_to}, x.data(), weight.data(), rstd.data(), dy.data(), dx.data(),
                    dweight.data());
  return {dx.values(), dweight.values(), {}};
}

Gradients layer_gradients(DType dtype, Sizes n, const Buffer& x, const Buffer& weight, const Buffer& dy,
                          void* add_dx_to = nullptr) {
  const Buffer bias = normal_buffer(dtype, n.dim, 3);
  Buffer y(dtype, static_cast<std::size_t>(n.rows * n.dim)), dx = y;
  Buffer dweight(dtype, static_cast<std::size_t>(n.dim)), dbias = dweight;
  Buffer mean(stat_dtype(dtype), static_cast<std::size_t>(n.rows)), rstd = mean;
  layer_norm_forward({dtype, n.rows, n.dim, kEps}, x.data(), weight.data(), bias.data(), y.data(), mean.data(),
                     rstd.data());
  layer_norm_backward({dtype, n.rows, n.dim, 0, add_dx_to}, x.data(), weight.data(), mean.data(), rstd.data(),
                      dy.data(), {dx.data(), dweight.data(), dbias.data()});
  return {dx.values(), dweight.values(), dbias.values()};
}

// dx added within the kernel, against dx and an addition after it.
TEST(Norms, AddDxToASumWithTheBitsOfAnAddition) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    for (const Sizes n : {Sizes{3, 5}, Sizes{130, 96}}) {
      const Buffer x = normal_buffer(dtype, n.rows * n.dim, 1), weight = normal_buffer(dtype, n.dim, 2);
      const Buffer dy = normal_buffer(dtype, n.rows * n.dim, 4), before = normal_buffer(dtype, n.rows * n.dim, 5);
      for (const auto gradients : {rms_gradients, layer_gradients}) {
        const Buffer dx(dtype, gradients(dtype, n, x, weight, dy, nullptr).dx);
        Buffer expected = before, sum = before;
        add(dtype, n.rows * n.dim, before.data(), dx.data(), expected.data());
        gradients(dtype, n, x, weight, dy, sum.data());
        EXPECT_EQ(sum.values(), expected.values()) << name(dtype) << " " << n.rows << " rows";
      }
    }
  }
}

constexpr Sizes kGradientSizes[] = {{3, 5}, {2, 19}, {40, 4}};

TEST(RmsNorm, GradientsAreTheDerivatives) {
  for (Sizes n : kGradientSizes) {
    const Buffer x = normal_buffer(DType::kF64, n.rows * n.dim, 1);
    const Buffer weight = normal_buffer(DType::kF64, n.dim, 2);
    const Buffer dy = normal_buffer(DType::kF64, n.rows * n.dim, 4);
    const Gradients got = rms_gradients(DType::kF64, n, x, weight, dy);
    expect_gradient(x.values(), got.dx, [&](const Doubles& at) {
      return dot(reference(false, n, at, weight.values(), {}).y, dy.values());
    });
    expect_gradient(weight.values(), got.dweight,
                    [&](const Doubles& at) { return dot(reference(false, n, x.values(), at, {}).y, dy.values()); });
  }
}

TEST(LayerNorm, GradientsAreTheDerivatives) {
  for (Sizes n : kGradientSizes) {
    const Buffer x = normal_buffer(DType::kF64, n.rows * n.dim, 1);
    const Buffer weight = normal_buffer(DType::kF64, n.dim, 2);
    const Buffer dy = normal_buffer(DType::kF64, n.rows * n.dim, 4);
    const Gradients got = layer_gradients(DType::kF64, n, x, weight, dy);
    expect_gradient(x.values(), got.dx,
                    [&](const Doubles& at) { return dot(reference(true, n, at, weight.values(), {}).y, dy.values()); });
    expect_gradient(weight.values(), got.dweight,
                    [&](const Doubles& at) { return dot(reference(true, n, x.values(), at, {}).y, dy.values()); });
    expect_gradient(normals(n.dim, 3), got.dbias, [&](const Doubles& at) {
      return dot(reference(true, n, x.values(), weight.values(), at).y, dy.values());
    });
  }
}

// The fp64 gradients are checked above; the other dtypes are checked against them, on the same (rounded) inputs.
template <class Run>
void expect_like_fp64(Run run) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (Sizes n : kSizes) {
      if (n.dim == 1) continue;
      const Buffer x = normal_buffer(dtype, n.rows * n.dim, 1);
      const Buffer weight = normal_buffer(dtype, n.dim, 2);
      const Buffer dy = normal_buffer(dtype, n.rows * n.dim, 4);
      const Gradients got = run(dtype, n, x, weight, dy, nullptr);
      const Gradients want = run(DType::kF64, n, Buffer(DType::kF64, x.values()), Buffer(DType::kF64, weight.values()),
                                 Buffer(DType::kF64, dy.values()), nullptr);
      expect_close(dtype, got.dx, want.dx, 40, 16);
      expect_close(dtype, got.dweight, want.dweight, 40, 16);
      expect_close(dtype, got.dbias, want.dbias, 40, 16);
    }
  }
}

TEST(RmsNorm, GradientsOfEveryDtypeEqualThoseOfFp64) { expect_like_fp64(rms_gradients); }
TEST(LayerNorm, GradientsOfEveryDtypeEqualThoseOfFp64) { expect_like_fp64(layer_gradients); }

TEST(Norms, ANaNSpoilsItsRowOnly) {
  constexpr Sizes n{3, 40};
  Doubles values = normals(n.rows * n.dim, 1);
  values[47] = std::numeric_limits<double>::quiet_NaN();  // row 1
  for (DType dtype : kFloats) {
    const Buffer x(dtype, values);
    const Buffer weight = normal_buffer(dtype, n.dim, 2);
    Buffer y(dtype, values.size()), rstd(stat_dtype(dtype), 3);
    rms_norm_forward({dtype, n.rows, n.dim, kEps}, x.data(), weight.data(), y.data(), rstd.data());
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(std::isnan(y.values()[i]), i / 40 == 1) << i;
  }
}

TEST(Norms, WithoutRowsTheWeightGradientIsZero) {
  Buffer none(DType::kF32, 0);
  const Buffer weight = normal_buffer(DType::kF32, 20, 2);
  Buffer dweight = normal_buffer(DType::kF32, 20, 5);
  rms_norm_forward({DType::kF32, 0, 20, kEps}, none.data(), weight.data(), none.data(), none.data());
  rms_norm_backward({DType::kF32, 0, 20}, none.data(), weight.data(), none.data(), none.data(), none.data(),
                    dweight.data());
  EXPECT_EQ(dweight.values(), Doubles(20, 0.0));
}

TEST(Norms, RefuseIntegers) {
  EXPECT_EQ(error_text<ModelError>([] {
              rms_norm_forward({DType::kI32, 1, 1, kEps}, nullptr, nullptr, nullptr, nullptr);
            }),
            "rms_norm_forward takes fp32, bf16, fp16 or fp64, got int32; cast it");
}

}  // namespace
}  // namespace loom::kernels::testing
