// A library of operators that tests call: each row misbehaves, or answers, in a way of its own.
#include <stdexcept>

#include "engine/custom_op/abi.h"

namespace {

extern "C" {

int32_t same_shape(const LoomCall* call, LoomShape* outputs, LoomMessage*) {
  outputs[0] = call->inputs[0].shape;
  return 0;
}

int32_t no_cost(const LoomCall*, const LoomTensor*, LoomCost*, LoomMessage*) { return 0; }
int32_t no_grad_cost(const LoomGradCall*, LoomCost*, LoomMessage*) { return 0; }

int32_t twice(const LoomCall* call, const LoomTensor* outputs, LoomMessage*) {
  const auto* x = static_cast<const float*>(call->inputs[0].data);
  for (int64_t i = 0; i < outputs[0].elems; ++i) static_cast<float*>(outputs[0].data)[i] = 2 * x[i];
  return 0;
}

int32_t fails(const LoomCall*, const LoomTensor*, LoomMessage* message) {
  loom_fail(message, "the\x1b[31m kernel is out of order");
  return 7;
}
int32_t fails_in_silence(const LoomCall*, const LoomTensor*, LoomMessage*) { return 3; }
int32_t guarded(const LoomCall*, const LoomTensor*, LoomMessage* message) {
  return loom_no_throw(message, []() -> int32_t { throw std::runtime_error("thrown inside"); });
}
int32_t throws(const LoomCall*, const LoomTensor*, LoomMessage*) { throw std::runtime_error("thrown outside"); }
int32_t backward_fails(const LoomGradCall*, const LoomTensor*, LoomMessage* message) {
  return loom_fail(message, "no gradient today");
}

// x [n], y [n] -> x * y [n] and the place of the largest product, int64 [].
int32_t product_shape(const LoomCall* call, LoomShape* outputs, LoomMessage* message) {
  const LoomShape &x = call->inputs[0].shape, &y = call->inputs[1].shape;
  if (x.dims != 1 || y.dims != 1 || x.sizes[0] != y.sizes[0]) return loom_fail(message, "x and y need one length");
  outputs[0] = x;
  outputs[1] = LoomShape{};
  outputs[1].dtype = LOOM_I64;
  return 0;
}
int32_t product_cost(const LoomCall* call, const LoomTensor*, LoomCost* cost, LoomMessage*) {
  cost->unit = LOOM_MATRIX;
  cost->batch = 1, cost->m = call->inputs[0].elems, cost->n = 2, cost->k = 3;
  return 0;
}
int32_t product(const LoomCall* call, const LoomTensor* outputs, LoomMessage*) {
  const auto *x = static_cast<const float*>(call->inputs[0].data), *y = static_cast<const float*>(call->inputs[1].data);
  auto* z = static_cast<float*>(outputs[0].data);
  int64_t& place = *static_cast<int64_t*>(outputs[1].data) = 0;
  for (int64_t i = 0; i < outputs[0].elems; ++i) {
    z[i] = x[i] * y[i];
    if (z[i] > z[place]) place = i;
  }
  return 0;
}
// Reads y of the saved inputs and z of the saved outputs: dx = dz y, dy = dz z / y.
int32_t product_backward(const LoomGradCall* call, const LoomTensor* input_grads, LoomMessage* message) {
  if (call->call.inputs[0].data != nullptr || call->outputs[1].data != nullptr || call->output_count != 2 ||
      call->output_grads[1].data != nullptr) {
    return loom_fail(message, "data that was not saved");
  }
  const auto *y = static_cast<const float*>(call->call.inputs[1].data),
             *z = static_cast<const float*>(call->outputs[0].data),
             *dz = static_cast<const float*>(call->output_grads[0].data);
  auto *dx = static_cast<float*>(input_grads[0].data), *dy = static_cast<float*>(input_grads[1].data);
  for (int64_t i = 0; i < input_grads[0].elems; ++i) {
    if (dx != nullptr) dx[i] = dz[i] * y[i];
    if (dy != nullptr) dy[i] = dz[i] * z[i] / y[i];
  }
  return 0;
}

int32_t many_dims(const LoomCall*, LoomShape* outputs, LoomMessage*) {
  outputs[0].dims = LOOM_MOST_DIMS + 1;
  return 0;
}
int32_t bad_dtype(const LoomCall*, LoomShape* outputs, LoomMessage*) {
  outputs[0].dtype = 99;
  return 0;
}
int32_t negative_size(const LoomCall*, LoomShape* outputs, LoomMessage*) {
  outputs[0].dims = 1;
  outputs[0].sizes[0] = -1;
  return 0;
}
int32_t huge(const LoomCall*, LoomShape* outputs, LoomMessage*) {
  outputs[0].dims = 3;
  for (int i = 0; i < 3; ++i) outputs[0].sizes[i] = int64_t{1} << 40;
  return 0;
}
int32_t negative_cost(const LoomCall*, const LoomTensor*, LoomCost* cost, LoomMessage*) {
  cost->read_bytes = -1;
  return 0;
}
int32_t bad_unit(const LoomCall*, const LoomTensor*, LoomCost* cost, LoomMessage*) {
  cost->unit = 5;
  return 0;
}
int32_t no_product(const LoomCall*, const LoomTensor*, LoomCost* cost, LoomMessage*) {
  cost->unit = LOOM_MATRIX;
  return 0;
}

}  // extern "C"

const uint32_t kF32[] = {LOOM_DTYPE_BIT(LOOM_F32), LOOM_DTYPE_BIT(LOOM_F32)};

using Shape = decltype(LoomOperator::shape);
using Cost = decltype(LoomOperator::cost);
using Forward = decltype(LoomOperator::forward);

LoomOperator unary(const char* name, Shape shape, Cost cost, Forward forward) {
  return {name, 1, 1, 0, 0, 0, kF32, shape, cost, forward, nullptr, nullptr};
}

const LoomOperator kOperators[] = {
    unary("twice", same_shape, no_cost, twice),
    unary("fails", same_shape, no_cost, fails),
    unary("fails_in_silence", same_shape, no_cost, fails_in_silence),
    unary("guarded", same_shape, no_cost, guarded),
    unary("throws", same_shape, no_cost, throws),
    unary("many_dims", many_dims, no_cost, twice),
    unary("bad_dtype", bad_dtype, no_cost, twice),
    unary("negative_size", negative_size, no_cost, twice),
    unary("huge", huge, no_cost, twice),
    unary("negative_cost", same_shape, negative_cost, twice),
    unary("bad_unit", same_shape, bad_unit, twice),
    unary("no_product", same_shape, no_product, twice),
    {"backward_fails", 1, 1, 0, 0, 0, kF32, same_shape, no_cost, twice, no_grad_cost, backward_fails},
    {"product", 2, 2, 0, /*saves_inputs=*/2, /*saves_outputs=*/1, kF32, product_shape, product_cost, product,
     no_grad_cost, product_backward},
};

const LoomOperatorTable kTable = {LOOM_CUSTOM_OP_ABI, sizeof(LoomOperator), sizeof kOperators / sizeof kOperators[0], 0,
                                  kOperators};

}  // namespace

extern "C" const LoomOperatorTable* loom_custom_ops(void) { return &kTable; }
