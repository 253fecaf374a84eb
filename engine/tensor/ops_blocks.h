// A block of the composed grain that only its compositions use. Private to engine/tensor.
#pragma once

#include "engine/tensor/tensor.h"

namespace loom::ops {

// x [B,S,H,D] times table [S,D] (one row a position), in x's dtype; the table needs no gradient.
Tensor mul_positions(const Tensor& x, const Tensor& table);

}  // namespace loom::ops
