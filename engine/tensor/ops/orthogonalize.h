// Orthogonalized: a matrix near to u (X with the singular values of X all 1), by Newton-Schulz iterations. Muon's step.
//
// Iteration  X = X / max(|X|, eps); then once for each triple (a, b, c): S = X X^T, X = a X + (b S + c S S) X. Where X
//            has more rows than columns, S = X^T X and the products are on the right, which is the transposed
//            iteration.
// dtypes     bf16: every product is summed in fp32 and rounded once, as torch.optim.Muon does it. fp32, fp64: as they
//            are.
// Values     singular values end in about [0.7, 1.2] with the default triple and five steps.
// Memory     a matrix like X, and two of its smaller side squared (one of them fp32), while it runs; one matrix of a
//            stack after another.
// Errors     ModelError for other shapes and dtypes, and where the input needs a gradient: nothing is recorded.
// Source     torch/optim/_muon.py; Keller Jordan, "Muon: An optimizer for hidden layers in neural networks" (2024).
#pragma once

#include <array>
#include <vector>

#include "engine/tensor/tensor.h"

namespace loom::ops {

struct NewtonSchulz {
  std::vector<std::array<double, 3>> coefficients;  // one triple a step
  double eps = 1e-7;
};

// The triple (3.4445, -4.7750, 2.0315), `steps` times.
NewtonSchulz newton_schulz(int steps);

// x: [A,B], or a stack [E,A,B] of matrices, each for itself; returns the same shape.
Tensor orthogonalized(const Tensor& x, const NewtonSchulz& options);

}  // namespace loom::ops
