// Compiled without contraction: which product is fused with a sum is written here.
#include "engine/kernels/optimizers_bf16.h"

#include <cmath>

#include "engine/kernels/dispatch.h"
#include "engine/kernels/tiles.h"

namespace loom::kernels {
namespace {

using V = simd::Pack<bf16>;

// a * b + c, rounded once.
LOOM_INLINE V fused(V a, V b, V c) {
#if defined(__AVX512F__)
  return std::bit_cast<V>(
      _mm512_maskz_fmadd_ps(simd::kAll, std::bit_cast<__m512>(a), std::bit_cast<__m512>(b), std::bit_cast<__m512>(c)));
#elif defined(__FMA__)
  struct Halves {
    __m256 lower, upper;
  };
  const auto x = std::bit_cast<Halves>(a), y = std::bit_cast<Halves>(b), z = std::bit_cast<Halves>(c);
  return std::bit_cast<V>(
      Halves{_mm256_fmadd_ps(x.lower, y.lower, z.lower), _mm256_fmadd_ps(x.upper, y.upper, z.upper)});
#else
  for (int lane = 0; lane < 16; ++lane) c[lane] = std::fma(a[lane], b[lane], c[lane]);
  return c;
#endif
}

// The numbers of one step, computed in double and rounded once.
struct Step {
  explicit Step(const AdamW& op)
      : decay(static_cast<float>(1 - op.lr * op.weight_decay)),
        grad_scale(static_cast<float>(op.grad_scale)),
        starts_at_grad(1 - op.beta1 >= 0.5),
        to_grad(simd::splat<V>(static_cast<float>(1 - op.beta1) - (starts_at_grad ? 1.0F : 0.0F))),
        beta2(static_cast<float>(op.beta2)),
        to_square(static_cast<float>(1 - op.beta2)),
        root_bias2(static_cast<float>(std::sqrt(1 - std::pow(op.beta2, static_cast<double>(op.step))))),
        eps(static_cast<float>(op.eps)),
        size(static_cast<float>(op.lr / (1 - std::pow(op.beta1, static_cast<double>(op.step))))) {}

  float decay, grad_scale;
  bool starts_at_grad;  // torch.lerp starts from the nearer end
  V to_grad;
  float beta2, to_square, root_bias2, eps, size;
};

}  // namespace

void adamw_bf16(const AdamW& op, bf16* weight, const void* grad, bf16* m, bf16* v) {
  const Step s(op);
  visit_float_dtype("adamw gradient", op.grad_dtype, [&]<class G>() {
    const auto* gradient = static_cast<const G*>(grad);
    for_pieces(op.elems, kTileElems, [&](std::int64_t begin, std::int64_t count) {
      simd::for_packs<V>(count, [&](std::int64_t i, auto part) {
        const std::int64_t at = begin + i;
        const V g = simd::load<V>(gradient + at, part) * s.grad_scale;
        const V m_old = simd::load<V>(m + at, part);
        const V m_new = fused(s.to_grad, g - m_old, s.starts_at_grad ? g : m_old);
        const V v_new = fused(g * s.to_square, g, simd::load<V>(v + at, part) * s.beta2);
        const V denominator = simd::sqrt(v_new) / s.root_bias2 + s.eps;
        simd::store(m + at, m_new, part);
        simd::store(v + at, v_new, part);
        simd::store(weight + at, simd::load<V>(weight + at, part) * s.decay - s.size * m_new / denominator, part);
      });
    });
  });
}

void sgd_bf16(const Sgd& op, bf16* weight, const void* grad, bf16* buffer) {
  const float lr = static_cast<float>(op.lr), momentum = static_cast<float>(op.momentum),
              decay = static_cast<float>(op.weight_decay);
  const V share = simd::splat<V>(1 - op.dampening);
  visit_float_dtype("sgd gradient", op.grad_dtype, [&]<class G>() {
    const auto* gradient = static_cast<const G*>(grad);
    for_pieces(op.elems, kTileElems, [&](std::int64_t begin, std::int64_t count) {
      simd::for_packs<V>(count, [&](std::int64_t i, auto part) {
        const std::int64_t at = begin + i;
        const V old = simd::load<V>(weight + at, part);
        V step = simd::load<V>(gradient + at, part) + old * decay;
        if (buffer != nullptr) {
          const V moved = op.first ? step : fused(step, share, simd::load<V>(buffer + at, part) * momentum);
          simd::store(buffer + at, moved, part);
          step = op.nesterov ? step + moved * momentum : moved;
        }
        simd::store(weight + at, old - step * lr, part);
      });
    });
  });
}

}  // namespace loom::kernels
