// What the tests of the fused kernels share: buffers of any float dtype seen as doubles, tolerances, threads.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/core/parallel.h"
#include "engine/core/rank_context.h"
#include "engine/core/rng.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/simd.h"

namespace loom::kernels::testing {

using Doubles = std::vector<double>;

inline constexpr DType kFloats[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};

// Elements of a dtype, written and read as doubles.
class Buffer {
 public:
  Buffer(DType dtype, std::size_t elems) : dtype_(dtype), elems_(elems), bytes_(elems * element_bytes(dtype)) {}
  Buffer(DType dtype, const Doubles& values) : Buffer(dtype, values.size()) {
    visit_dtype(dtype, [&]<class T>() {
      if constexpr (!std::is_same_v<T, bool>) {
        for (std::size_t i = 0; i < elems_; ++i) static_cast<T*>(data())[i] = simd::from_double<T>(values[i]);
      }
    });
  }

  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  Doubles values() const {
    Doubles result(elems_);
    visit_dtype(dtype_, [&]<class T>() {
      if constexpr (!std::is_same_v<T, bool>) {
        for (std::size_t i = 0; i < elems_; ++i) result[i] = simd::to_double(static_cast<const T*>(data())[i]);
      }
    });
    return result;
  }

 private:
  DType dtype_;
  std::size_t elems_;
  std::vector<std::byte> bytes_;
};

inline DType stat_dtype(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

// Standard normal numbers; `stream` tells tensors apart.
inline Doubles normals(std::int64_t elems, std::uint64_t stream) {
  Doubles values(static_cast<std::size_t>(elems));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = normal_at(stream, i);
  return values;
}
inline Buffer normal_buffer(DType dtype, std::int64_t elems, std::uint64_t stream) {
  return Buffer(dtype, normals(elems, stream));
}

// Half the distance of neighbours, relative: what one rounding to the dtype may change.
inline double rounding(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 0x1p-8;
    case DType::kF16:
      return 0x1p-11;
    case DType::kF64:
      return 0x1p-53;
    default:
      return 0x1p-24;
  }
}

// One rounding to `dtype`, plus `operations` roundings of the arithmetic (fp32, or fp64) on numbers of size `scale`.
inline void expect_close(DType dtype, const Doubles& got, const Doubles& want, double operations, double scale = 1) {
  ASSERT_EQ(got.size(), want.size());
  const double arithmetic = operations * rounding(stat_dtype(dtype)) * scale;
  const double smallest = dtype == DType::kF16 ? 0x1p-25 : 0;  // half the least subnormal
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double allowed = rounding(dtype) * std::abs(want[i]) * 1.01 + arithmetic + smallest;
    ASSERT_NEAR(got[i], want[i], allowed) << "element " << i << " in " << name(dtype);
  }
}

// grad[i] = d f / d x[i], by central differences in double.
inline void expect_gradient(Doubles x, const Doubles& grad, const std::function<double(const Doubles&)>& f) {
  constexpr double kStep = 1e-5;
  ASSERT_EQ(grad.size(), x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double here = x[i];
    x[i] = here + kStep;
    const double above = f(x);
    x[i] = here - kStep;
    const double below = f(x);
    x[i] = here;
    // Truncation: step^2 / 6 times a third derivative; cancellation: 2^-52 |f| / step.
    const double slope = (above - below) / (2 * kStep);
    ASSERT_NEAR(grad[i], slope, 1e-8 * (1 + std::abs(slope) + std::abs(above))) << "element " << i;
  }
}

inline double dot(const Doubles& a, const Doubles& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Runs `body` as a rank that computes with `threads` threads.
inline void with_threads(int threads, const std::function<void()>& body) {
  RankContext context(0, 1);
  context.slot<ComputePool>().resize(threads);
  const RankScope scope(context);
  body();
}

// The text of the E that `body` throws.
template <class E, class Body>
std::string error_text(Body&& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace loom::kernels::testing
