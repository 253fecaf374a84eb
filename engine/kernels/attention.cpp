#include "engine/kernels/attention.h"

#include <cstddef>
#include <type_traits>

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

void check_segments(const Attention& op) {
  const std::vector<std::int64_t>& ends = *op.segment_ends;
  require(op.causal && op.queries == op.keys && op.start == 0,
          "attention within segments is causal, of as many keys as queries, from position 0 on");
  std::int64_t begin = 0;
  for (const std::int64_t end : ends) {
    require(end > begin && end <= (begin / op.queries + 1) * op.queries,
            "attention of a segment from {} to {} of rows of {}", begin, end, op.queries);
    begin = end;
  }
  require(begin == op.batch * op.queries, "attention segments end at {} of {} positions", begin, op.batch * op.queries);
}

// In bytes, from the tensors' beginnings.
struct Offsets {
  std::int64_t query = 0;
  std::int64_t key = 0;
  std::int64_t statistic = 0;
};

template <class Void>
Void* add(Void* tensor, std::int64_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
  return tensor == nullptr ? nullptr : static_cast<Byte*>(tensor) + bytes;
}

// Calls body(attention without segments, where its tensors begin).
template <class Body>
void for_each_dense(const Attention& op, Body&& body) {
  attn::Dense dense{op, op.queries};
  dense.segment_ends.reset();
  if (!op.segment_ends) return body(dense, Offsets{});
  check_segments(op);
  const auto element = element_bytes(op.dtype);
  const std::int64_t statistic = op.dtype == DType::kF64 ? 8 : 4;
  dense.batch = 1;
  std::int64_t begin = 0;
  for (const std::int64_t end : *op.segment_ends) {
    dense.queries = dense.keys = end - begin;
    const std::int64_t row = begin / op.queries;
    body(dense, Offsets{.query = begin * op.heads * op.head_dim * element,
                        .key = begin * op.kv_heads * op.head_dim * element,
                        .statistic = (row * op.heads * op.queries + begin % op.queries) * statistic});
    begin = end;
  }
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
  for_each_dense(op, [&](const attn::Dense& part, const Offsets& at) {
    with_element_type(op.dtype, [&](auto element) {
      attn::forward<decltype(element)>(part, add(q, at.query), add(k, at.key), add(v, at.key), add(out, at.query),
                                       add(log_sum_exp, at.statistic));
    });
  });
}

void attention_backward(const Attention& op, const AttentionBackward& t) {
  if (!check(op)) return;
  for_each_dense(op, [&](const attn::Dense& part, const Offsets& at) {
    const AttentionBackward tensors{.q = add(t.q, at.query),
                                    .k = add(t.k, at.key),
                                    .v = add(t.v, at.key),
                                    .out = add(t.out, at.query),
                                    .log_sum_exp = add(t.log_sum_exp, at.statistic),
                                    .dout = add(t.dout, at.query),
                                    .dlog_sum_exp = add(t.dlog_sum_exp, at.statistic),
                                    .dq = add(t.dq, at.query),
                                    .dk = add(t.dk, at.key),
                                    .dv = add(t.dv, at.key)};
    with_element_type(op.dtype, [&](auto element) { attn::backward<decltype(element)>(part, tensors); });
  });
}

}  // namespace loom::kernels
