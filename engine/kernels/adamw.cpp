#include <cmath>

#include "engine/kernels/dispatch.h"
#include "engine/kernels/fused.h"
#include "engine/kernels/optimizers_bf16.h"
#include "engine/kernels/tiles.h"

namespace loom::kernels {
namespace {

// The numbers of one step, computed in double and rounded once.
template <class S>
struct Step {
  explicit Step(const AdamW& op)
      : decay(static_cast<S>(1 - op.lr * op.weight_decay)),
        grad_scale(static_cast<S>(op.grad_scale)),
        to_grad(static_cast<S>(1 - op.beta1)),
        beta1(static_cast<S>(op.beta1)),
        beta2(static_cast<S>(op.beta2)),
        to_square(static_cast<S>(1 - op.beta2)),
        root_bias2(static_cast<S>(std::sqrt(1 - std::pow(op.beta2, static_cast<double>(op.step))))),
        eps(static_cast<S>(op.eps)),
        size(static_cast<S>(op.lr / (1 - std::pow(op.beta1, static_cast<double>(op.step))))),
        lerp_from_grad(1 - op.beta1 >= 0.5) {}

  S decay, grad_scale, to_grad, beta1, beta2, to_square, root_bias2, eps, size;
  bool lerp_from_grad;  // torch.lerp starts from the nearer end
};

template <class S, class V, class G>
void update(const Step<S>& step, std::int64_t elems, S* weight, const G* grad, S* m, S* v) {
  for_pieces(elems, kTileElems, [&](std::int64_t begin, std::int64_t count) {
    const Step<S> s = step;
    simd::for_packs<V>(count, [&](std::int64_t i, auto part) {
      const std::int64_t at = begin + i;
      const V g = simd::load<V>(grad + at, part) * s.grad_scale;
      const V m_old = simd::load<V>(m + at, part);
      const V m_new = s.lerp_from_grad ? g - (g - m_old) * s.beta1 : m_old + (g - m_old) * s.to_grad;
      const V v_new = simd::load<V>(v + at, part) * s.beta2 + g * g * s.to_square;
      const V denominator = simd::sqrt(v_new) / s.root_bias2 + s.eps;
      simd::store(m + at, m_new, part);
      simd::store(v + at, v_new, part);
      simd::store(weight + at, simd::load<V>(weight + at, part) * s.decay - s.size * m_new / denominator, part);
    });
  });
}

}  // namespace

void adamw(const AdamW& op, void* weight, const void* grad, void* m, void* v) {
  require(op.dtype == DType::kF32 || op.dtype == DType::kF64 || op.dtype == DType::kBF16,
          "adamw keeps its state in fp32, fp64 or bf16, got {}", name(op.dtype));
  require(op.step >= 1, "adamw counts steps from 1, got {}", op.step);
  if (op.dtype == DType::kBF16) {
    return adamw_bf16(op, static_cast<bf16*>(weight), grad, static_cast<bf16*>(m), static_cast<bf16*>(v));
  }
  visit_float_dtype("adamw gradient", op.grad_dtype, [&]<class G>() {
    const auto* g = static_cast<const G*>(grad);
    const auto run = [&]<class S>(S* w) {
      update<S, simd::Pack<S>>(Step<S>(op), op.elems, w, g, static_cast<S*>(m), static_cast<S*>(v));
    };
    if (op.dtype == DType::kF32) {
      run(static_cast<float*>(weight));
    } else {
      run(static_cast<double*>(weight));
    }
  });
}

}  // namespace loom::kernels
