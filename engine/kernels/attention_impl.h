// Attention for one element type T; attention.cpp chooses T by dtype. Private to engine/kernels.
#pragma once

#include <span>
#include <vector>

#include "engine/kernels/attention.h"
#include "engine/kernels/bf16_products.h"

namespace loom::kernels::attn {

// An attention without segments: a whole one, or that within one segment of another.
struct Dense : Attention {
  std::int64_t statistic_row = 0;  // elements from one head's log_sum_exp to the next one's
};

// Strides of the tensors of an Attention, in elements.
struct Layout {
  explicit Layout(const Dense& op)
      : q_row(op.heads * op.head_dim),
        kv_row(op.kv_heads * op.head_dim),
        group(op.heads / op.kv_heads),
        op_(op),
        statistic_row_(op.statistic_row) {}

  std::int64_t q(std::int64_t batch, std::int64_t head, std::int64_t row) const {
    return ((batch * op_.queries + row) * op_.heads + head) * op_.head_dim;
  }
  std::int64_t kv(std::int64_t batch, std::int64_t kv_head, std::int64_t row) const {
    return ((batch * op_.keys + row) * op_.kv_heads + kv_head) * op_.head_dim;
  }
  std::int64_t statistic(std::int64_t batch, std::int64_t head, std::int64_t row) const {
    return (batch * op_.heads + head) * statistic_row_ + row;
  }
  // A key of a query head in [B,H,S_k,D]: dk and dv before they are summed over the heads of a group.
  std::int64_t head_key(std::int64_t batch, std::int64_t head, std::int64_t key) const {
    return ((batch * op_.heads + head) * op_.keys + key) * op_.head_dim;
  }

  const std::int64_t q_row;
  const std::int64_t kv_row;
  const std::int64_t group;  // query heads of a key/value head

 private:
  const Attention& op_;
  const std::int64_t statistic_row_;
};

inline constexpr double kLog2E = 1.4426950408889634;
inline constexpr double kLn2 = 0.69314718055994531;

// An independent part of an attention, and where its tensors begin, in elements.
struct Part {
  Dense op;
  std::int64_t query = 0;
  std::int64_t key = 0;
  std::int64_t statistic = 0;
};

// All query heads of one key/value head of a part.
struct HeadTask {
  const Part* part;
  std::int64_t kv_unit;  // batch * kv_heads + key/value head
};
// Longest first; none where they are too few for the threads to share out evenly.
std::vector<HeadTask> key_value_head_tasks(std::span<const Part> parts);

struct ForwardTensors {
  const void *q, *k, *v;
  void *out, *log_sum_exp;
};

// attention_forward() and attention_backward() with a choice of the products of bf16: tests try both. Other dtypes
// ignore it, and so does a program compiled for a processor without pairs.
void forward(const Attention& op, Bf16Products products, const ForwardTensors& tensors);
void backward(const Attention& op, Bf16Products products, const AttentionBackward& tensors);

// `products` of T = bf16.
template <class T>
void forward_parts(std::span<const Part> parts, Bf16Products products, const ForwardTensors& tensors);
template <class T>
void backward_parts(std::span<const Part> parts, Bf16Products products, const AttentionBackward& tensors);

}  // namespace loom::kernels::attn
