#include "engine/kernels/dispatch.h"
#include "engine/kernels/fused.h"
#include "engine/kernels/tiles.h"

namespace loom::kernels {

void swiglu_forward(DType dtype, std::int64_t elems, const void* gate, const void* up, void* y) {
  visit_float_dtype("swiglu_forward", dtype, [&]<class T>() {
    using V = simd::Pack<T>;
    map<V>(
        elems, static_cast<T*>(y), [](V g, V u) { return g * simd::sigmoid(g) * u; }, static_cast<const T*>(gate),
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
        simd::for_packs<V>(count, [&](std::int64_t i, auto part) {
          const V g = simd::load<V>(g_in + begin + i, part);
          const V d = simd::load<V>(d_in + begin + i, part);
          const V s = simd::sigmoid(g);
          put(dg_out + begin + i, d * simd::load<V>(u_in + begin + i, part) * s * (1.0f + g * (1.0f - s)), part);
          put(du_out + begin + i, d * g * s, part);
        });
        put.finish();
      });
    });
  });
}

}  // namespace loom::kernels
