// A library of one operator: scaled_gelu, y = scale * gelu(x) in the tanh form, with its gradient.
// docs/custom-operators.md explains it:
//   g++ -std=c++17 -O2 -shared -fPIC -fvisibility=hidden -I include/shardloom scaled_gelu.cpp -o scaled_gelu.so
#include <cmath>

#include "engine/custom_op/abi.h"

namespace {

constexpr double kRootTwoOverPi = 0.79788456080286535588;
constexpr double kCubic = 0.044715;

template <class T>
T gelu(T x) {
  const T inner = T(kRootTwoOverPi) * (x + T(kCubic) * x * x * x);
  return T(0.5) * x * (1 + std::tanh(inner));
}

template <class T>
T gelu_slope(T x) {
  const T inner = T(kRootTwoOverPi) * (x + T(kCubic) * x * x * x);
  const T tanh = std::tanh(inner);
  return T(0.5) * (1 + tanh) + T(0.5) * x * (1 - tanh * tanh) * T(kRootTwoOverPi) * (1 + 3 * T(kCubic) * x * x);
}

template <class T>
void forward_of(const LoomTensor& x, double scale, const LoomTensor& y) {
  for (int64_t i = 0; i < x.elems; ++i) {
    static_cast<T*>(y.data)[i] = T(scale) * gelu(static_cast<const T*>(x.data)[i]);
  }
}

template <class T>
void backward_of(const LoomTensor& x, double scale, const LoomTensor& dy, const LoomTensor& dx) {
  for (int64_t i = 0; i < x.elems; ++i) {
    const T slope = T(scale) * gelu_slope(static_cast<const T*>(x.data)[i]);
    static_cast<T*>(dx.data)[i] = static_cast<const T*>(dy.data)[i] * slope;
  }
}

int64_t bytes_of(const LoomTensor& tensor) { return tensor.elems * (tensor.shape.dtype == LOOM_F64 ? 8 : 4); }

extern "C" {

int32_t shape(const LoomCall* call, LoomShape* outputs, LoomMessage* message) {
  if (!std::isfinite(call->attributes[0])) return loom_fail(message, "the scale is not finite; give a number");
  outputs[0] = call->inputs[0].shape;
  return 0;
}

int32_t cost(const LoomCall* call, const LoomTensor* outputs, LoomCost* cost, LoomMessage*) {
  const LoomTensor& x = call->inputs[0];
  cost->flops = 11.0 * static_cast<double>(x.elems);
  cost->read_bytes = bytes_of(x);
  cost->written_bytes = bytes_of(outputs[0]);
  return 0;
}

int32_t forward(const LoomCall* call, const LoomTensor* outputs, LoomMessage* message) {
  return loom_no_throw(message, [&] {
    const LoomTensor& x = call->inputs[0];
    const double scale = call->attributes[0];
    x.shape.dtype == LOOM_F64 ? forward_of<double>(x, scale, outputs[0]) : forward_of<float>(x, scale, outputs[0]);
    return 0;
  });
}

int32_t grad_cost(const LoomGradCall* call, LoomCost* cost, LoomMessage*) {
  const LoomTensor& x = call->call.inputs[0];
  cost->flops = 21.0 * static_cast<double>(x.elems);
  cost->read_bytes = 2 * bytes_of(x);
  cost->written_bytes = bytes_of(x);
  return 0;
}

int32_t backward(const LoomGradCall* call, const LoomTensor* input_grads, LoomMessage* message) {
  return loom_no_throw(message, [&] {
    const LoomTensor& x = call->call.inputs[0];
    const LoomTensor& dy = call->output_grads[0];
    const double scale = call->call.attributes[0];
    x.shape.dtype == LOOM_F64 ? backward_of<double>(x, scale, dy, input_grads[0])
                              : backward_of<float>(x, scale, dy, input_grads[0]);
    return 0;
  });
}

}  // extern "C"

const uint32_t kInputDtypes[] = {LOOM_DTYPE_BIT(LOOM_F32) | LOOM_DTYPE_BIT(LOOM_F64)};

const LoomOperator kOperators[] = {{/*name=*/"scaled_gelu",
                                    /*inputs=*/1, /*outputs=*/1, /*attributes=*/1,
                                    /*saves_inputs=*/1, /*saves_outputs=*/0, kInputDtypes, shape, cost, forward,
                                    grad_cost, backward}};

const LoomOperatorTable kTable = {LOOM_CUSTOM_OP_ABI, sizeof(LoomOperator), 1, 0, kOperators};

}  // namespace

extern "C" const LoomOperatorTable* loom_custom_ops(void) { return &kTable; }
