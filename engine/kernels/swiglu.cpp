#include <array>

#include "engine/kernels/dispatch.h"
#include "engine/kernels/fused.h"
#include "engine/kernels/tiles.h"

namespace loom::kernels {

void swiglu_forward(DType dtype, std::int64_t elems, const void* gate, const void* up, void* y) {
  visit_float_dtype("swiglu_forward", dtype, [&]<class T>() {
    using V = simd::Pack<T>;
    map<V>(
        elems, static_cast<T*>(y), [](V g, V u) { return g * simd::sigmoid_to<T>(g) * u; }, static_cast<const T*>(gate),
        static_cast<const T*>(up));
  });
}

void swiglu_backward(DType dtype, std::int64_t elems, const void* gate, const void* up, const void* dy, void* dgate,
                     void* dup) {
  visit_float_dtype("swiglu_backward", dtype, [&]<class T>() {
    using V = simd::Pack<T>;
    const auto* g_in = static_cast<const T*>(gate);
    const auto* u_in = static_cast<const T*>(up);
    const auto* d_in = static_cast<const T*>(dy);
    auto* dg_out = static_cast<T*>(dgate);
    auto* du_out = static_cast<T*>(dup);
    const std::int64_t bytes = elems * static_cast<std::int64_t>(sizeof(T));
    simd::with_store(simd::streams(dgate, 1, bytes) && simd::streams(dup, 1, bytes), [&](auto put) {
      for_pieces(elems, kTileElems, [&](std::int64_t begin, std::int64_t count) {
        const T *g_at = g_in + begin, *u_at = u_in + begin, *d_at = d_in + begin;
        simd::put_packs<V>(count, dg_out + begin, du_out + begin, put, [=](std::int64_t i, auto part) {
          const V g = simd::load<V>(g_at + i, part);
          const V d = simd::load<V>(d_at + i, part);
          const V s = simd::sigmoid_of_slope<T>(g);
          const V silu = g * s;
          return std::array{d * simd::load<V>(u_at + i, part) * (s + silu * (1.0f - s)), d * silu};
        });
        put.finish();
      });
    });
  });
}

}  // namespace loom::kernels
