#include "engine/custom_op/call.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <optional>
#include <utility>

#include "engine/core/checked.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::custom {
namespace {

constexpr std::array kDTypes{DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI8,
                             DType::kI16, DType::kI32,  DType::kI64, DType::kU8,  DType::kBool};
static_assert(LOOM_F32 == 0 && LOOM_BF16 == 1 && LOOM_F16 == 2 && LOOM_F64 == 3 && LOOM_I8 == 4 && LOOM_I16 == 5 &&
              LOOM_I32 == 6 && LOOM_I64 == 7 && LOOM_U8 == 8 && LOOM_BOOL == 9);

constexpr std::int64_t kMostBytes = std::int64_t{1} << 47;  // of a tensor; far above every device

std::string where(const Operator& op) {
  return fmt::format("custom operator '{}' of {}", op.row->name, escaped(op.library->path().string()));
}

// Calls a function of the library. Its exceptions do not pass, whatever it was told.
template <class Function, class... Arguments>
void ask(const Operator& op, std::string_view what, Function function, Arguments... arguments) {
  LoomMessage message{};
  std::int32_t status = 0;
  try {
    status = function(arguments..., &message);
  } catch (...) {
    model_error("{}: {} threw an exception through its C interface; return 1 with a message (loom_no_throw)", where(op),
                what);
  }
  if (status == 0) return;
  const std::string_view text(message.text, strnlen(message.text, LOOM_MESSAGE_BYTES));
  model_error("{}: {} failed with status {}: {}", where(op), what, status,
              text.empty() ? "it gave no message" : shown_text(text));
}

OutputShape checked_shape(const Operator& op, std::size_t output, const LoomShape& given) {
  check_model(given.dims >= 0 && given.dims <= LOOM_MOST_DIMS,
              "{}: its shape rule gives output {} {} dims, allowed are 0 to {}; correct the rule", where(op), output,
              given.dims, LOOM_MOST_DIMS);
  check_model(given.dtype >= 0 && given.dtype < static_cast<int>(kDTypes.size()),
              "{}: its shape rule gives output {} dtype {}, allowed are 0 to {}; use a LoomDType", where(op), output,
              given.dtype, kDTypes.size() - 1);
  OutputShape result{Shape(std::vector<std::int64_t>(given.sizes, given.sizes + given.dims)),
                     kDTypes[static_cast<std::size_t>(given.dtype)]};
  std::optional<std::int64_t> bytes = element_bytes(result.dtype);
  for (const std::int64_t size : result.shape.sizes()) {
    check_model(size >= 0, "{}: its shape rule gives output {} a dim of {}, allowed are 0 and more; correct the rule",
                where(op), output, size);
    bytes = bytes ? checked_multiply(*bytes, size) : bytes;
  }
  check_model(bytes && *bytes <= kMostBytes,
              "{}: its shape rule gives output {} the shape {}, more than 128 TiB; correct the rule", where(op), output,
              to_string(result.shape));
  return result;
}

device::Cost checked_cost(const Operator& op, std::string_view what, const LoomCost& given) {
  check_model(std::isfinite(given.flops) && given.flops >= 0 && given.read_bytes >= 0 && given.written_bytes >= 0,
              "{}: {} gives {} flops, {} bytes read and {} written, allowed are numbers of 0 and more; correct it",
              where(op), what, given.flops, given.read_bytes, given.written_bytes);
  device::Cost cost{given.flops, given.read_bytes, given.written_bytes};
  if (given.unit == LOOM_VECTOR) return cost;
  check_model(given.unit == LOOM_MATRIX, "{}: {} gives unit {}, allowed are 0 and 1; use a LoomUnit", where(op), what,
              given.unit);
  check_model(given.batch > 0 && given.m > 0 && given.n > 0 && given.k > 0 && given.dtype >= 0 &&
                  given.dtype < static_cast<int>(kDTypes.size()),
              "{}: {} gives {} products of [{}, {}] x [{}, {}] in dtype {}, allowed are sizes of 1 and more and a "
              "LoomDType; correct it",
              where(op), what, given.batch, given.m, given.k, given.k, given.n, given.dtype);
  cost.unit = device::Unit::kMatrix;
  cost.dtype = kDTypes[static_cast<std::size_t>(given.dtype)];
  cost.batch = given.batch, cost.m = given.m, cost.n = given.n, cost.k = given.k;
  return cost;
}

}  // namespace

std::string text_of_dtypes(std::uint32_t dtypes) {
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < kDTypes.size(); ++i) {
    if ((dtypes & LOOM_DTYPE_BIT(i)) != 0) names.push_back(name(kDTypes[i]));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

LoomCall Arguments::call() const {
  return {inputs.data(), attributes.data(), static_cast<std::int32_t>(inputs.size()),
          static_cast<std::int32_t>(attributes.size())};
}

LoomTensor view_of(const Tensor& tensor, bool data) {
  LoomTensor view{};
  if (data) view.data = tensor.raw();
  view.elems = tensor.numel();
  view.shape.dims = tensor.shape().ndim();
  for (int d = 0; d < tensor.shape().ndim(); ++d) view.shape.sizes[d] = tensor.shape()[d];
  view.shape.dtype = static_cast<std::int32_t>(std::ranges::find(kDTypes, tensor.dtype()) - kDTypes.begin());
  return view;
}

std::vector<LoomTensor> views_of(const std::vector<Tensor>& tensors, bool data) {
  std::vector<LoomTensor> views;
  for (const Tensor& tensor : tensors) views.push_back(view_of(tensor, data));
  return views;
}

std::vector<OutputShape> output_shapes(const Operator& op, const Arguments& arguments) {
  std::vector<LoomShape> given(static_cast<std::size_t>(op.row->outputs));
  const LoomCall call = arguments.call();
  ask(op, "shape", op.row->shape, &call, given.data());
  std::vector<OutputShape> shapes;
  for (std::size_t i = 0; i < given.size(); ++i) shapes.push_back(checked_shape(op, i, given[i]));
  return shapes;
}

device::Cost cost_of(const Operator& op, const Arguments& arguments) {
  LoomCost cost{};
  const LoomCall call = arguments.call();
  ask(op, "cost", op.row->cost, &call, arguments.outputs.data(), &cost);
  return checked_cost(op, "cost", cost);
}

device::Cost grad_cost_of(const Operator& op, const LoomGradCall& call) {
  LoomCost cost{};
  ask(op, "grad_cost", op.row->grad_cost, &call, &cost);
  return checked_cost(op, "grad_cost", cost);
}

void run_forward(const Operator& op, const Arguments& arguments) {
  const LoomCall call = arguments.call();
  ask(op, "forward", op.row->forward, &call, arguments.outputs.data());
}

void run_backward(const Operator& op, const LoomGradCall& call, const std::vector<LoomTensor>& input_grads) {
  ask(op, "backward", op.row->backward, &call, input_grads.data());
}

}  // namespace loom::custom
