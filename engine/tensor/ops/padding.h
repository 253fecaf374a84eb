// The embedding of tables with a row for padding.
#pragma once

#include <cstdint>

#include "engine/tensor/tensor.h"

namespace loom::ops {

// A gradient [rows, dim] without what is of row `padding`; `first`: the row of the table that is the gradient's first.
// Part of a kernel's work.
void drop_padding_row(const Tensor& gradient, std::int64_t padding, std::int64_t first = 0);

// embedding() of ops.h, or with `composed` that of composed.h; row `padding` gets no gradient, as with
// torch.nn.Embedding's padding_idx. -1: there is none.
Tensor embedding(const Tensor& ids, const Tensor& table, std::int64_t padding, bool composed);

}  // namespace loom::ops
