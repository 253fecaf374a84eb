#include "engine/kernels/attention.h"

#include "engine/core/error.h"
#include "engine/kernels/attention_impl.h"

namespace loom::kernels {
namespace {

// False when there is nothing to do.
bool check(const Attention& op) {
  require(op.batch >= 0 && op.queries >= 0 && op.keys >= 0 && op.heads >= 0 && op.head_dim >= 0 && op.start >= 0,
          "attention sizes must not be negative, got batch={} queries={} keys={} heads={} head_dim={} start={}",
          op.batch, op.queries, op.keys, op.heads, op.head_dim, op.start);
  check_model(is_floating(op.dtype), "attention takes fp32, bf16, fp16 or fp64, got {}; cast it", name(op.dtype));
  if (op.batch == 0 || op.queries == 0 || op.heads == 0 || op.head_dim == 0) return false;
  require(op.keys > 0, "attention of {} queries needs a key", op.queries);
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

void attention_backward(const Attention& op, const AttentionBackward& tensors) {
  if (!check(op)) return;
  with_element_type(op.dtype, [&](auto element) { attn::backward<decltype(element)>(op, tensors); });
}

}  // namespace loom::kernels
