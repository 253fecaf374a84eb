// Norms and clipping of the gradients of a list of parameters. Parameters without gradient are skipped.
//
// Where    on the device for gradients there; on the CPU for gradients on the host. Reading a gradient waits until it
//          has landed there.
#pragma once

#include <vector>

#include "engine/tensor/tensor.h"

namespace loom::nn {

// Sum of squares of the parameters themselves, in their order, in double.
double sum_of_squares(const std::vector<Tensor>& parameters);
// Sum of squares of the gradients, in parameter order, in double. Those on their way to the host are squared in
// the order in which they land (landing.h), and added up in parameter order all the same.
double gradient_sum_of_squares(const std::vector<Tensor>& parameters);
// Elements of the gradients that are 0 or -0.
double gradient_zeros(const std::vector<Tensor>& parameters);
// Multiplies every gradient by `factor`.
void scale_gradients(const std::vector<Tensor>& parameters, double factor);
// Multiplies every gradient by min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_; `norm` is the one
// over all ranks.
void clip_gradients(const std::vector<Tensor>& parameters, double norm, double max_norm);

}  // namespace loom::nn
