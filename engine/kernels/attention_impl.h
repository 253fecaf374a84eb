// Attention for one element type T; attention.cpp chooses T by dtype. Private to engine/kernels.
#pragma once

#include "engine/kernels/attention.h"

namespace loom::kernels::attn {

// Strides of the tensors of an Attention, in elements.
struct Layout {
  explicit Layout(const Attention& op)
      : q_row(op.heads * op.head_dim), kv_row(op.kv_heads * op.head_dim), group(op.heads / op.kv_heads), op_(op) {}

  std::int64_t q(std::int64_t batch, std::int64_t head, std::int64_t row) const {
    return ((batch * op_.seq + row) * op_.heads + head) * op_.head_dim;
  }
  std::int64_t kv(std::int64_t batch, std::int64_t kv_head, std::int64_t row) const {
    return ((batch * op_.seq + row) * op_.kv_heads + kv_head) * op_.head_dim;
  }
  std::int64_t statistic(std::int64_t batch, std::int64_t head, std::int64_t row) const {
    return (batch * op_.heads + head) * op_.seq + row;
  }

  const std::int64_t q_row;
  const std::int64_t kv_row;
  const std::int64_t group;  // query heads of a key/value head

 private:
  const Attention& op_;
};

inline constexpr double kLog2E = 1.4426950408889634;
inline constexpr double kLn2 = 0.69314718055994531;

template <class T>
void forward(const Attention& op, const void* q, const void* k, const void* v, void* out, void* log_sum_exp);

template <class T>
void backward(const Attention& op, const void* q, const void* k, const void* v, const void* out,
              const void* log_sum_exp, const void* dout, void* dq, void* dk, void* dv);

}  // namespace loom::kernels::attn
