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

template <class S, class V>
struct TanhForm {
  static constexpr S kLinear = static_cast<S>(kTwoK);
  static constexpr S kThird = static_cast<S>(kTwoK * kCubic);

  static V gate(V x) { return simd::sigmoid(x * (kLinear + kThird * (x * x))); }
  V forward(V x) const { return x * gate(x); }
  V slope(V x) const {
    const V s = gate(x);
    return s + x * s * (1 - s) * (kLinear + 3 * kThird * (x * x));
  }
};

template <class S, class V>
struct ErfForm {
  static V cdf(V x) { return static_cast<S>(0.5) * (1 + simd::erf(x * static_cast<S>(kInvSqrt2))); }
  V forward(V x) const { return x * cdf(x); }
  V slope(V x) const { return cdf(x) + x * (simd::exp(x * x * static_cast<S>(-0.5)) * static_cast<S>(kInvSqrt2Pi)); }
};

template <class T, class Body>
void with_form(GeluForm form, Body body) {
  using S = simd::Scalar<T>;
  using V = simd::Pack<T>;
  if (form == GeluForm::kTanh) {
    body(TanhForm<S, V>{});
  } else {
    body(ErfForm<S, V>{});
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
