// Blocks that only compositions use. Private to engine/tensor.
#pragma once

#include "engine/tensor/tensor.h"

namespace loom::ops {

// x [B,S,H,D] times table [S,D] (one row a position), in x's dtype; the table needs no gradient.
Tensor mul_positions(const Tensor& x, const Tensor& table);

// The last dim's softmax, kept in fp32 (fp64) as softmax(x, dtype=float32) does.
Tensor softmax_in_statistics(const Tensor& x);

// Added by a mask where a key is not seen: the dtype's most negative finite number, as torch.finfo(dtype).min.
double smallest_number(DType dtype);

}  // namespace loom::ops
