#include "engine/kernels/momentum.h"

#include <type_traits>

#include "engine/kernels/dispatch.h"
#include "engine/kernels/optimizers_bf16.h"
#include "engine/kernels/tiles.h"

namespace loom::kernels {
namespace {

// fp32 or fp64 at compile time.
template <class Body>
void visit_weight_dtype(std::string_view kernel, DType dtype, Body&& body) {
  if (dtype == DType::kF32) return body.template operator()<float>();
  if (dtype == DType::kF64) return body.template operator()<double>();
  model_error("{} keeps weights and state in fp32 or fp64, got {}; train with those", kernel, name(dtype));
}

// bf16 or fp32 for fp32 weights, fp64 for fp64 weights.
template <class S, class Body>
void visit_update_dtype(std::string_view kernel, DType dtype, Body&& body) {
  if (dtype == dtype_of<S>) return body.template operator()<S>();
  if constexpr (std::is_same_v<S, float>) {
    if (dtype == DType::kBF16) return body.template operator()<bf16>();
  }
  model_error("{} of {} weights has no update in {}; use bf16 or the weights' dtype", kernel, name(dtype_of<S>),
              name(dtype));
}

// body(first element, Full or Part) over all packs, cut into tiles.
template <class V, class Body>
void for_all_packs(std::int64_t elems, Body&& body) {
  for_pieces(elems, kTileElems, [&](std::int64_t begin, std::int64_t count) {
    simd::for_packs<V>(count, [&](std::int64_t i, auto part) { body(begin + i, part); });
  });
}

// torch.lerp starts from the nearer end.
template <class V, class S>
V lerp(V from, V to, double weight, S) {
  if (weight < 0.5) return from + (to - from) * static_cast<S>(weight);
  return to - (to - from) * static_cast<S>(1 - weight);
}

}  // namespace

void sgd(const Sgd& op, void* weight, const void* grad, void* buffer) {
  if (op.dtype == DType::kBF16) return sgd_bf16(op, static_cast<bf16*>(weight), grad, static_cast<bf16*>(buffer));
  visit_weight_dtype("sgd", op.dtype, [&]<class S>() {
    using V = simd::Pack<S>;
    auto* w = static_cast<S*>(weight);
    auto* kept = static_cast<S*>(buffer);
    visit_float_dtype("sgd gradient", op.grad_dtype, [&]<class G>() {
      const auto* g = static_cast<const G*>(grad);
      const S lr = static_cast<S>(op.lr), momentum = static_cast<S>(op.momentum),
              decay = static_cast<S>(op.weight_decay), share = static_cast<S>(1 - op.dampening);
      for_all_packs<V>(op.elems, [&](std::int64_t at, auto part) {
        const V old = simd::load<V>(w + at, part);
        V step = simd::load<V>(g + at, part) + old * decay;
        if (kept != nullptr) {
          const V added = op.dampening == 0 ? step : step * share;
          const V moved = op.first ? step : simd::load<V>(kept + at, part) * momentum + added;
          simd::store(kept + at, moved, part);
          step = op.nesterov ? step + moved * momentum : moved;
        }
        simd::store(w + at, old - step * lr, part);
      });
    });
  });
}

void muon_momentum(const MuonMomentum& op, const void* grad, void* buffer, void* update) {
  visit_weight_dtype("muon_momentum", op.dtype, [&]<class S>() {
    using V = simd::Pack<S>;
    auto* kept = static_cast<S*>(buffer);
    visit_float_dtype("muon_momentum gradient", op.grad_dtype, [&]<class G>() {
      visit_update_dtype<S>("muon_momentum", op.update_dtype, [&]<class U>() {
        const auto* g = static_cast<const G*>(grad);
        auto* u = static_cast<U*>(update);
        for_all_packs<V>(op.elems, [&](std::int64_t at, auto part) {
          const V now = simd::load<V>(g + at, part);
          const V moved = lerp(simd::load<V>(kept + at, part), now, 1 - op.momentum, S{});
          simd::store(kept + at, moved, part);
          simd::store(u + at, op.nesterov ? lerp(now, moved, op.momentum, S{}) : moved, part);
        });
      });
    });
  });
}

void muon_update(const MuonUpdate& op, const void* update, void* weight) {
  visit_weight_dtype("muon_update", op.dtype, [&]<class S>() {
    using V = simd::Pack<S>;
    auto* w = static_cast<S*>(weight);
    visit_update_dtype<S>("muon_update", op.update_dtype, [&]<class U>() {
      const auto* u = static_cast<const U*>(update);
      const S keep = static_cast<S>(1 - op.lr * op.weight_decay), step = static_cast<S>(op.step);
      for_all_packs<V>(op.elems, [&](std::int64_t at, auto part) {
        simd::store(w + at, simd::load<V>(w + at, part) * keep - simd::load<V>(u + at, part) * step, part);
      });
    });
  });
}

void weighted_sum(const WeightedSum& op, const void* x, const void* y, void* out) {
  require(op.y_dtype == op.dtype || op.y_dtype == DType::kF32, "weighted_sum of {} and {}", name(op.dtype),
          name(op.y_dtype));
  visit_float_dtype("weighted_sum", op.dtype, [&]<class T>() {
    using V = simd::Pack<T>;
    using S = simd::Scalar<T>;
    const auto run = [&]<class Y>(const Y* second) {
      const S a = static_cast<S>(op.a), b = static_cast<S>(op.b);
      const auto* first = static_cast<const T*>(x);
      auto* to = static_cast<T*>(out);
      for_all_packs<V>(op.elems, [&](std::int64_t at, auto part) {
        simd::store(to + at, simd::load<V>(first + at, part) * a + simd::load<V>(second + at, part) * b, part);
      });
    };
    if (op.y_dtype == op.dtype) return run(static_cast<const T*>(y));
    if constexpr (!std::is_same_v<T, double>) run(static_cast<const float*>(y));
  });
}

}  // namespace loom::kernels
