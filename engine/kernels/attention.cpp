#include "engine/kernels/attention.h"

#include <algorithm>
#include <span>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
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

// The whole as one part, or its segments.
std::vector<attn::Part> parts_of(const Attention& op) {
  attn::Dense dense{op, op.queries};
  dense.segment_ends.reset();
  if (!op.segment_ends) return {{.op = dense}};
  check_segments(op);
  std::vector<attn::Part> parts;
  dense.batch = 1;
  std::int64_t begin = 0;
  for (const std::int64_t end : *op.segment_ends) {
    dense.queries = dense.keys = end - begin;
    parts.push_back({.op = dense,
                     .query = begin * op.heads * op.head_dim,
                     .key = begin * op.kv_heads * op.head_dim,
                     .statistic = begin / op.queries * op.heads * op.queries + begin % op.queries});
    begin = end;
  }
  return parts;
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
  attn::forward(op, fastest_bf16_products(), {.q = q, .k = k, .v = v, .out = out, .log_sum_exp = log_sum_exp});
}

void attention_backward(const Attention& op, const AttentionBackward& tensors) {
  attn::backward(op, fastest_bf16_products(), tensors);
}

namespace attn {

void forward(const Attention& op, Bf16Products products, const ForwardTensors& tensors) {
  if (!check(op)) return;
  const std::vector<Part> parts = parts_of(op);
  with_element_type(op.dtype, [&](auto element) { forward_parts<decltype(element)>(parts, products, tensors); });
}

void backward(const Attention& op, Bf16Products products, const AttentionBackward& tensors) {
  if (!check(op)) return;
  const std::vector<Part> parts = parts_of(op);
  with_element_type(op.dtype, [&](auto element) { backward_parts<decltype(element)>(parts, products, tensors); });
}

std::vector<HeadTask> key_value_head_tasks(std::span<const Part> parts) {
  constexpr std::int64_t kLeastTasks = 16;  // were all as long as the longest
  const auto cost = [](const Part& part) { return part.op.queries * part.op.keys; };
  std::int64_t longest = 0, total = 0;
  std::vector<HeadTask> tasks;
  for (const Part& part : parts) {
    const std::int64_t heads = part.op.batch * part.op.kv_heads;
    longest = std::max(longest, cost(part));
    total += heads * cost(part);
    for (std::int64_t kv_unit = 0; kv_unit < heads; ++kv_unit) tasks.push_back({&part, kv_unit});
  }
  if (parallel_threads() > 1 && total < kLeastTasks * longest) return {};
  std::stable_sort(tasks.begin(), tasks.end(),
                   [&](const HeadTask& a, const HeadTask& b) { return cost(*a.part) > cost(*b.part); });
  return tasks;
}

}  // namespace attn
}  // namespace loom::kernels
