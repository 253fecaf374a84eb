// One call of a custom operator across the C interface: tensors as the library sees them, and its answers, checked.
// Private to engine/custom_op.
#pragma once

#include <vector>

#include "engine/custom_op/library.h"
#include "engine/device/cost.h"
#include "engine/tensor/tensor.h"

namespace loom::custom {

// An operator and where it comes from.
struct Operator {
  const LoomOperator* row = nullptr;
  const Library* library = nullptr;
};

// The dtypes of a set, as messages list them.
std::string text_of_dtypes(std::uint32_t dtypes);

// Inputs, attributes and outputs of one call. Without `data` the library sees shapes only. Backward keeps it.
struct Arguments {
  std::vector<LoomTensor> inputs;
  std::vector<double> attributes;
  std::vector<LoomTensor> outputs;

  LoomCall call() const;
};

// A tensor as the library sees it; `data`: with its bytes.
LoomTensor view_of(const Tensor& tensor, bool data);
std::vector<LoomTensor> views_of(const std::vector<Tensor>& tensors, bool data);

// The shape that the operator's rule gives each output. Throws ModelError with the library's text, or where the rule
// gives what no tensor can have.
struct OutputShape {
  Shape shape;
  DType dtype = DType::kF32;
};
std::vector<OutputShape> output_shapes(const Operator& op, const Arguments& arguments);

device::Cost cost_of(const Operator& op, const Arguments& arguments);
device::Cost grad_cost_of(const Operator& op, const LoomGradCall& call);

void run_forward(const Operator& op, const Arguments& arguments);
void run_backward(const Operator& op, const LoomGradCall& call, const std::vector<LoomTensor>& input_grads);

}  // namespace loom::custom
