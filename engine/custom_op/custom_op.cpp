#include "engine/custom_op/custom_op.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/rank_context.h"
#include "engine/core/shown_text.h"
#include "engine/custom_op/call.h"
#include "engine/device/device.h"
#include "engine/tensor/autograd.h"

namespace loom::custom {
namespace {

using autograd::Grads;
using autograd::Needs;
using autograd::Saved;

// The operators of a rank.
struct Loaded {
  Libraries libraries;
  std::map<std::string, Operator, std::less<>> operators;

  void add(const std::shared_ptr<const Library>& library) {
    if (!add_library(libraries, library)) return;
    for (const LoomOperator* row : library->operators()) operators[row->name] = {row, library.get()};
  }

  Operator find(std::string_view name) const {
    const auto found = operators.find(name);
    if (found != operators.end()) return found->second;
    std::vector<std::string_view> names;
    for (const auto& [known, op] : operators) names.push_back(known);
    config_error(
        "custom operator '{}' is not loaded; loaded are {}; give its library to --custom-op-library, or call "
        "load_custom_ops()",
        shown_text(name), names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
  }
};

std::string text_of(const Operator& op) {
  return fmt::format("custom operator '{}' of {}", op.row->name, escaped(op.library->path().string()));
}

void check_schema(const Operator& op, const std::vector<Tensor>& inputs, const std::vector<double>& attributes) {
  check_model(inputs.size() == static_cast<std::size_t>(op.row->inputs), "{}: {} inputs, allowed are {}; give as many",
              text_of(op), inputs.size(), op.row->inputs);
  check_model(attributes.size() == static_cast<std::size_t>(op.row->attributes),
              "{}: {} attributes, allowed are {}; give as many numbers", text_of(op), attributes.size(),
              op.row->attributes);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_model(inputs[i].defined(), "{}: input {} is an undefined tensor; give it a value first", text_of(op), i);
    check_model(inputs[i].shape().ndim() <= LOOM_MOST_DIMS, "{}: input {} has {} dims, allowed are 0 to {}; reshape it",
                text_of(op), i, inputs[i].shape().ndim(), LOOM_MOST_DIMS);
    const std::uint32_t allowed = op.row->input_dtypes[i];
    check_model((allowed & LOOM_DTYPE_BIT(view_of(inputs[i], false).shape.dtype)) != 0,
                "{}: input {} is {}, allowed are {}; cast it", text_of(op), i, name(inputs[i].dtype()),
                text_of_dtypes(allowed));
  }
}

std::vector<Tensor> empty_outputs(const Operator& op, const Arguments& arguments) {
  std::vector<Tensor> outputs;
  for (const OutputShape& one : output_shapes(op, arguments)) {
    outputs.push_back(Tensor::empty(one.shape, one.dtype));
    outputs.back().storage()->set_what(op.row->name);
  }
  return outputs;
}

bool needs_gradient(const std::vector<Tensor>& inputs) {
  return std::ranges::any_of(inputs, [](const Tensor& input) { return input.requires_grad(); });
}

bool is_saved(std::int32_t saved, std::size_t i) { return (saved >> i & 1) != 0; }

// The tensors of a call that backward reads, inputs first.
std::vector<Tensor> saved_of(const Operator& op, const std::vector<Tensor>& inputs,
                             const std::vector<Tensor>& outputs) {
  std::vector<Tensor> saved;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (is_saved(op.row->saves_inputs, i)) saved.push_back(inputs[i]);
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (is_saved(op.row->saves_outputs, i)) saved.push_back(outputs[i]);
  }
  return saved;
}

Shape shape_of(const LoomTensor& view) {
  return Shape(std::vector<std::int64_t>(view.shape.sizes, view.shape.sizes + view.shape.dims));
}

// The structs of one backward. Not copied: they refer to each other.
struct GradViews {
  // Of shapes alone: the arguments of forward.
  explicit GradViews(const Arguments& of_forward)
      : arguments(of_forward), output_grads(of_forward.outputs), input_grads(of_forward.inputs) {
    call = {arguments.call(), arguments.outputs.data(), output_grads.data(),
            static_cast<std::int32_t>(output_grads.size())};
  }
  GradViews(const GradViews&) = delete;
  GradViews& operator=(const GradViews&) = delete;

  void set_data(const Operator& op, Saved saved, const Grads& of_outputs, const Grads& of_inputs) {
    std::size_t next = 0;
    for (std::size_t i = 0; i < arguments.inputs.size(); ++i) {
      if (is_saved(op.row->saves_inputs, i)) arguments.inputs[i].data = saved[next++].raw();
    }
    for (std::size_t i = 0; i < arguments.outputs.size(); ++i) {
      if (is_saved(op.row->saves_outputs, i)) arguments.outputs[i].data = saved[next++].raw();
    }
    for (std::size_t i = 0; i < of_outputs.size(); ++i) {
      output_grads[i].data = of_outputs[i].defined() ? of_outputs[i].raw() : nullptr;
    }
    for (std::size_t i = 0; i < of_inputs.size(); ++i) {
      input_grads[i].data = of_inputs[i].defined() ? of_inputs[i].raw() : nullptr;
    }
  }

  Arguments arguments;
  std::vector<LoomTensor> output_grads;
  std::vector<LoomTensor> input_grads;
  LoomGradCall call{};
};

// The gradients of all outputs: those that came, zeros for others, none for integers, which are not recorded.
Grads of_all_outputs(const Arguments& arguments, const std::vector<DType>& dtypes, const Grads& recorded) {
  Grads grads;
  std::size_t next = 0;
  for (std::size_t i = 0; i < dtypes.size(); ++i) {
    Tensor grad;
    if (is_floating(dtypes[i])) {
      grad = next < recorded.size() ? recorded[next] : Tensor{};
      ++next;
      if (!grad.defined()) grad = Tensor::zeros(shape_of(arguments.outputs[i]), dtypes[i]);
    }
    grads.push_back(std::move(grad));
  }
  return grads;
}

struct Dtypes {
  std::vector<DType> inputs, outputs;
};

Grads run_recorded(const Operator& op, const Arguments& arguments, const Dtypes& dtypes, Saved saved,
                   const Grads& recorded, const Needs& needs) {
  const Grads output_grads = of_all_outputs(arguments, dtypes.outputs, recorded);
  Grads input_grads(arguments.inputs.size());
  for (std::size_t i = 0; i < input_grads.size(); ++i) {
    if (needs[i]) input_grads[i] = Tensor::empty(shape_of(arguments.inputs[i]), dtypes.inputs[i]);
  }
  GradViews views(arguments);
  const device::Cost cost = grad_cost_of(op, views.call);
  device::Device::current().launch(fmt::format("custom.{}_grad", op.row->name), cost, [&] {
    views.set_data(op, saved, output_grads, input_grads);
    run_backward(op, views.call, views.input_grads);
  });
  return input_grads;
}

void record(const Operator& op, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
            Arguments arguments) {
  Dtypes dtypes;
  for (const Tensor& input : inputs) dtypes.inputs.push_back(input.dtype());
  for (const Tensor& output : outputs) dtypes.outputs.push_back(output.dtype());
  std::vector<Tensor> recorded = outputs;
  std::erase_if(recorded, [](const Tensor& output) { return !is_floating(output.dtype()); });
  if (recorded.empty()) return;
  autograd::record(op.row->name, inputs, saved_of(op, inputs, outputs), std::move(recorded),
                   [op, arguments = std::move(arguments), dtypes = std::move(dtypes)](Saved saved, const Grads& grads,
                                                                                      const Needs& needs) {
                     return run_recorded(op, arguments, dtypes, saved, grads, needs);
                   });
}

}  // namespace

void load_custom_ops(const std::filesystem::path& path) {
  RankContext::current().slot<Loaded>().add(Library::open(path));
}

void load_custom_ops(RankContext& context, const Libraries& libraries) {
  for (const auto& library : libraries) context.slot<Loaded>().add(library);
}

std::vector<Tensor> custom_op(std::string_view name, const std::vector<Tensor>& inputs,
                              const std::vector<double>& attributes) {
  const Operator op = RankContext::current().slot<Loaded>().find(name);
  autograd::check_inputs(name, inputs);
  check_schema(op, inputs, attributes);
  check_model(op.row->backward != nullptr || !autograd::backward_expected() || !needs_gradient(inputs),
              "{}: it has no backward, and an input requires a gradient; give the operator one, or call it under "
              "autograd::NoGrad",
              text_of(op));
  Arguments arguments{views_of(inputs, /*data=*/false), attributes, {}};
  const std::vector<Tensor> outputs = empty_outputs(op, arguments);
  arguments.outputs = views_of(outputs, /*data=*/false);
  device::Device::current().launch(fmt::format("custom.{}", op.row->name), cost_of(op, arguments), [&] {
    run_forward(op, {views_of(inputs, /*data=*/true), attributes, views_of(outputs, /*data=*/true)});
  });
  if (op.row->backward != nullptr) record(op, inputs, outputs, std::move(arguments));
  return outputs;
}

}  // namespace loom::custom
