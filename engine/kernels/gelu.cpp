#include <numbers>

#include "engine/kernels/dispatch.h"
#include "engine/kernels/fused.h"
#include "engine/kernels/tiles.h"

namespace loom::kernels {
namespace {

// 1 + tanh(u) = 2 sigmoid(2u), so the tanh form is x * sigmoid(2u) with u = k (x + c x^3), without cancellation.
constexpr double kCubic = 0.044715;
constexpr double kTwoK = 2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi;  // 2 sqrt(2 / pi)
constexpr double kInvSqrt2 = 1 / std::numbers::sqrt2;
constexpr double kInvSqrt2Pi = std::numbers::inv_sqrtpi / std::numbers::sqrt2;

template <class T>
struct TanhForm {
  using S = simd::Scalar<T>;
  using V = simd::Pack<T>;
  static constexpr S kLinear = static_cast<S>(kTwoK);
  static constexpr S kThird = static_cast<S>(kTwoK * kCubic);

  static V twice_u(V x) { return x * (kLinear + kThird * (x * x)); }
  V forward(V x) const {
    if constexpr (std::is_same_v<T, bf16>) {
      constexpr float kOne = -kLinear * simd::kLog2E, kThree = -kThird * simd::kLog2E;
      return x * simd::coarse_reciprocal(1.0f + simd::exp2<4>(x * (kOne + kThree * (x * x))));
    } else {
      return x * simd::sigmoid(twice_u(x));
    }
  }
  V slope(V x) const {
    const V s = simd::sigmoid_of_slope<T>(twice_u(x));
    return s + x * s * (1 - s) * (kLinear + 3 * kThird * (x * x));
  }
};

template <class T>
struct ErfForm {
  using S = simd::Scalar<T>;
  using V = simd::Pack<T>;

  static V cdf(V x) { return static_cast<S>(0.5) * (1 + simd::erf(x * static_cast<S>(kInvSqrt2))); }
  V forward(V x) const { return x * cdf(x); }
  V slope(V x) const {
    return cdf(x) + x * (simd::exp_to<T>(x * x * static_cast<S>(-0.5)) * static_cast<S>(kInvSqrt2Pi));
  }
};

template <class T, class Body>
void with_form(GeluForm form, Body body) {
  if (form == GeluForm::kTanh) {
    body(TanhForm<T>{});
  } else {
    body(ErfForm<T>{});
  }
}

}  // namespace

void gelu_forward(DType dtype, GeluForm form, std::int64_t elems, const void* x, void* y) {
  visit_float_dtype("gelu_forward", dtype, [&]<class T>() {
    using V = simd::Pack<T>;
    with_form<T>(form, [&](auto gelu) {
      map<V>(
          elems, static_cast<T*>(y), [gelu](V v) { return gelu.forward(v); }, static_cast<const T*>(x));
    });
  });
}

void gelu_backward(DType dtype, GeluForm form, std::int64_t elems, const void* x, const void* dy, void* dx) {
  visit_float_dtype("gelu_backward", dtype, [&]<class T>() {
    using V = simd::Pack<T>;
    with_form<T>(form, [&](auto gelu) {
      map<V>(
          elems, static_cast<T*>(dx), [gelu](V v, V d) { return d * gelu.slope(v); }, static_cast<const T*>(x),
          static_cast<const T*>(dy));
    });
  });
}

}  // namespace loom::kernels
