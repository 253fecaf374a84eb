#include "engine/kernels/attention.h"

#include "engine/core/error.h"
#include "engine/kernels/attention_impl.h"

namespace loom::kernels {
namespace {

// False when there is nothing to do.
bool check(const Attention& op) {
  require(op.batch >= 0 && op.seq >= 0 && op.heads >= 0 && op.head_dim >= 0,
          "attention sizes must not be negative, got batch={} seq={} heads={} head_dim={}", op.batch, op.seq, op.heads,
          op.head_dim);
  require(is_floating(op.dtype), "attention takes fp32, bf16, fp16 or fp64, got {}", name(op.dtype));
  if (op.batch == 0 || op.seq == 0 || op.heads == 0 || op.head_dim == 0) return false;
  require(op.kv_heads > 0 && op.heads % op.kv_heads == 0,
          "attention with {} query heads needs a divisor of that as key/value heads, got {}", op.heads, op.kv_heads);
  return true;
}

template <class Body>
void with_element_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kBF16:
      return body(bf16{});
    case DType::kF16:
      return body(f16{});
    case DType::kF64:
      return body(double{});
    default:
      return body(float{});
  }
}

}  // namespace

void attention_forward(const Attention& op, const void* q, const void* k, const void* v, void* out, void* log_sum_exp) {
  if (!check(op)) return;
  with_element_type(op.dtype, [&](auto element) { attn::forward<decltype(element)>(op, q, k, v, out, log_sum_exp); });
}

void attention_backward(const Attention& op, const void* q, const void* k, const void* v, const void* out,
                        const void* log_sum_exp, const void* dout, void* dq, void* dk, void* dv) {
  if (!check(op)) return;
  with_element_type(op.dtype, [&](auto element) {
    attn::backward<decltype(element)>(op, q, k, v, out, log_sum_exp, dout, dq, dk, dv);
  });
}

}  // namespace loom::kernels
