#include "engine/nn/functional_grad.h"

#include <algorithm>
#include <fmt/format.h>
#include <memory>
#include <unordered_set>

#include "engine/core/error.h"
#include "engine/core/shape_text.h"
#include "engine/core/shown_text.h"
#include "engine/tensor/gradients_of.h"

namespace loom::nn {
namespace {

constexpr std::string_view kPlace = "value_and_grad";

void check_positions(const GradPositions& positions) {
  if (!positions.is_given()) return;
  if (positions.list().empty()) {
    config_error("{}: positions is an empty tuple; give positions of inputs, or std::nullopt for none", kPlace);
  }
  std::unordered_set<int> seen;
  for (const int position : positions.list()) {
    if (position < 0) {
      config_error("{}: position {} in positions, allowed are 0 and more; count inputs from 0", kPlace, position);
    }
    if (!seen.insert(position).second) {
      config_error("{}: position {} is twice in positions, allowed is once; leave one out", kPlace, position);
    }
  }
}

void check_weight(const std::string& shown, const Tensor& weight) {
  if (!weight.is_leaf()) {
    config_error("{}: weight '{}' is the result of an operator, allowed are leaves; give the parameter itself", kPlace,
                 shown);
  }
  if (!weight.requires_grad()) {
    config_error(
        "{}: weight '{}' requires no gradient, allowed are tensors that do; leave it out, or call "
        "set_requires_grad(true)",
        kPlace, shown);
  }
  if (weight.meta_data().guard) {
    config_error(
        "{}: weight '{}' is sharded, allowed are whole parameters; differentiate before fully_shard(), or run "
        "backward(), whose gradients the groups reduce",
        kPlace, shown);
  }
}

void check_weights(const GradWeights& weights) {
  if (weights.is_given() && weights.list().empty()) {
    config_error("{}: weights is an empty list; give parameters, or std::nullopt for none", kPlace);
  }
  std::unordered_set<const void*> seen;
  for (std::size_t i = 0; i < weights.list().size(); ++i) {
    const auto& [name, weight] = weights.list()[i];
    const std::string shown = shown_text(name);
    if (!weight.defined()) {
      config_error("{}: weight {} ('{}') is an undefined tensor, allowed are parameters; give it a value first", kPlace,
                   i, shown);
    }
    check_weight(shown, weight);
    if (!seen.insert(weight.id()).second) {
      config_error("{}: weight '{}' is twice in weights, allowed is once; leave one out", kPlace, shown);
    }
  }
}

void check_ids(const GradSpec& spec) {
  std::unordered_set<std::string_view> names;
  for (const auto& [name, weight] : spec.weights.list()) {
    if (spec.return_ids && !names.insert(name).second) {
      config_error("{}: return_ids with two weights named '{}', allowed is one; name them, as named_parameters() does",
                   kPlace, shown_text(name));
    }
  }
}

void check_spec(const GradSpec& spec) {
  if (!spec.positions.is_given() && !spec.weights.is_given()) {
    config_error(
        "{}: neither positions nor weights are given, one of them is needed; give positions of inputs, or "
        "parameters",
        kPlace);
  }
  check_positions(spec.positions);
  check_weights(spec.weights);
  check_ids(spec);
}

ValueList outputs_of(const Value& value) {
  if (value.is_list()) return value.list();
  if (!value.is_dict()) return ValueList{value};
  ValueList outputs;
  for (const auto& [key, output] : value.dict()) outputs.push_back(output);
  return outputs;
}

// One call: its inputs as leaves, its outputs, its cotangents.
class Call {
 public:
  Call(const GradSpec& spec, Args args) : spec_(spec), args_(std::move(args)) {
    check_model(
        !autograd::in_function() || !autograd::grad_enabled(),
        "{} inside a function that is differentiated: gradients of gradients are not recorded; call it outside, "
        "or under autograd::NoGrad if its result is a constant there",
        kPlace);
    if (spec.sens_param) take_sens();
    make_leaves();
  }

  ValueAndGrad run(const Function& function) {
    const autograd::FunctionScope scope;
    const Value value = function(args_);
    const std::vector<Tensor> outputs = differentiated(value);
    const std::vector<Tensor> gradients = gradients_of(outputs);
    return {value.map_tensors([](const Tensor& tensor) { return tensor.detach(); }), by_half(gradients)};
  }

 private:
  void take_sens() {
    check_model(!args_.positional.empty(),
                "{}: sens_param with a call of 0 arguments; give the cotangent of the output as the last one", kPlace);
    const Value last = std::move(args_.positional.back());
    args_.positional.pop_back();
    last.collect_tensors(sens_);
  }

  // Inputs lose their graph; those of the spec become leaves.
  void make_leaves() {
    const std::vector<Tensor> tensors = args_.tensors();
    autograd::check_inputs(kPlace, tensors);
    for (const Tensor& tensor : tensors) {
      check_model(!tensor.requires_grad() || tensor.is_leaf() || !autograd::grad_enabled(),
                  "{}: an input is the result of a recorded operator, to which its gradient would not lead: gradients "
                  "of gradients are not recorded; give detach() of it",
                  kPlace);
    }
    args_.map_tensors([](const Tensor& tensor) { return tensor.detach(); });
    for (const int position : spec_.positions.list()) wanted_.push_back(leaf_at(position));
    for (const auto& [name, weight] : spec_.weights.list()) wanted_.push_back(weight);
  }

  Tensor leaf_at(int position) const {
    const std::size_t count = args_.positional.size();
    check_model(static_cast<std::size_t>(position) < count,
                "{}: position {} of a call with {} inputs; allowed are positions below {}", kPlace, position, count,
                count);
    const Value& value = args_.positional[static_cast<std::size_t>(position)];
    check_model(value.is_tensor() && value.tensor().defined(),
                "{}: input {} is no tensor, allowed are tensors of floating dtypes; leave it out of positions", kPlace,
                position);
    check_model(is_floating(value.tensor().dtype()),
                "{}: input {} is {}, allowed are floating dtypes; leave it out of positions", kPlace, position,
                name(value.tensor().dtype()));
    return value.tensor().set_requires_grad(true);
  }

  // The outputs whose sum is differentiated.
  std::vector<Tensor> differentiated(const Value& value) const {
    const ValueList outputs = outputs_of(value);
    check_model(
        !spec_.has_aux || outputs.size() >= 2,
        "{}: has_aux with a function of {} output, allowed are 2 and more; return the auxiliary outputs too, or "
        "leave has_aux out",
        kPlace, outputs.size());
    std::vector<Tensor> tensors;
    for (std::size_t i = 0; i < (spec_.has_aux ? 1 : outputs.size()); ++i) {
      const bool is_tensor = outputs[i].is_tensor() && outputs[i].tensor().defined();
      check_model(is_tensor, "{}: output {} is no tensor, allowed are tensors; return it after the first, with has_aux",
                  kPlace, i);
      tensors.push_back(outputs[i].tensor());
    }
    check_model(!tensors.empty(), "{}: a function of 0 outputs, allowed are 1 and more; return a tensor", kPlace);
    return tensors;
  }

  Tensor cotangent(const Tensor& output, std::size_t i) const {
    if (!spec_.sens_param) return Tensor::full(output.shape(), output.dtype(), 1.0);
    const Tensor& sens = sens_[i];
    check_model(
        sens.shape() == output.shape() && sens.dtype() == output.dtype(),
        "{}: the cotangent of output {} is {} {}, the output is {} {}; give it the shape and dtype of the output",
        kPlace, i, name(sens.dtype()), sens.shape(), name(output.dtype()), output.shape());
    return sens;
  }

  std::vector<Tensor> gradients_of(const std::vector<Tensor>& outputs) const {
    check_model(!spec_.sens_param || sens_.size() == outputs.size(),
                "{}: {} cotangents for {} differentiated outputs; give one for each, as the last argument", kPlace,
                sens_.size(), outputs.size());
    std::vector<autograd::Root> roots;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const Tensor grad = spec_.sens_param || outputs[i].requires_grad() ? cotangent(outputs[i], i) : Tensor{};
      roots.push_back({outputs[i], grad});
    }
    std::vector<Tensor> gradients = autograd::gradients_of(roots, wanted_);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (gradients[i].defined()) continue;
      gradients[i] = Tensor::zeros(wanted_[i].shape(), wanted_[i].dtype(), device::MemCategory::kGradient, "gradient");
    }
    return gradients;
  }

  Gradients by_half(const std::vector<Tensor>& gradients) const {
    const auto middle = gradients.begin() + static_cast<std::ptrdiff_t>(spec_.positions.list().size());
    std::vector<GradId> positions, names;
    if (spec_.return_ids) {
      positions.assign(spec_.positions.list().begin(), spec_.positions.list().end());
      for (const auto& [name, weight] : spec_.weights.list()) names.emplace_back(name);
    }
    return {GradPart({gradients.begin(), middle}, std::move(positions), spec_.positions.is_tuple()),
            GradPart({middle, gradients.end()}, std::move(names), spec_.weights.is_list())};
  }

  const GradSpec& spec_;
  Args args_;
  std::vector<Tensor> sens_;
  std::vector<Tensor> wanted_;  // inputs, then weights
};

std::string text_of(const GradId& id) {
  if (const int* position = std::get_if<int>(&id)) return fmt::format("{}", *position);
  return fmt::format("'{}'", shown_text(std::get<std::string>(id)));
}

Tensor find(const Gradients& gradients, const GradId& id) {
  std::vector<std::string> ids;
  for (const GradPart* part : {&gradients.inputs(), &gradients.weights()}) {
    if (part->size() == 0) continue;
    for (const auto& [key, gradient] : part->pairs()) {
      if (key == id) return gradient;
      ids.push_back(text_of(key));
    }
  }
  model_error("get_grad: no gradient has the id {}; there are {}", text_of(id),
              ids.empty() ? "none" : fmt::format("{}", fmt::join(ids, ", ")));
}

Function function_of(Module& module) {
  return [&module](const Args& args) { return module.call(args); };
}

}  // namespace

GradWeights::GradWeights(Tensor weight) {
  std::string what = weight.defined() ? weight.storage()->what() : "";
  list_.emplace_back(std::move(what), std::move(weight));
}

GradWeights::GradWeights(const std::vector<Tensor>& list) : is_list_(true) {
  for (const Tensor& weight : list) list_.emplace_back(weight.defined() ? weight.storage()->what() : "", weight);
}

const Tensor& GradPart::tensor() const {
  check_model(!is_tuple_ && size() == 1, "the gradients are {}, one tensor was read; read {}",
              is_tuple_ ? fmt::format("a tuple of {}", size()) : "none", is_tuple_ ? "tuple()" : "the other half");
  return gradients_.front();
}

const std::vector<Tensor>& GradPart::tuple() const {
  check_model(is_tuple_, "the gradients are {}, a tuple was read; read {}", size() == 1 ? "one tensor" : "none",
              size() == 1 ? "tensor(), or give the spec a list" : "the other half");
  return gradients_;
}

std::vector<std::pair<GradId, Tensor>> GradPart::pairs() const {
  check_model(ids_.size() == size(), "ids of {} gradients that have none; set return_ids in the spec", size());
  std::vector<std::pair<GradId, Tensor>> pairs;
  for (std::size_t i = 0; i < size(); ++i) pairs.emplace_back(ids_[i], gradients_[i]);
  return pairs;
}

const GradPart& Gradients::only() const {
  check_model(inputs_.size() == 0 || weights_.size() == 0,
              "the gradients are a pair, of {} inputs and {} weights; read inputs() and weights()", inputs_.size(),
              weights_.size());
  return inputs_.size() != 0 ? inputs_ : weights_;
}

Tensor get_grad(const Gradients& gradients, int position) { return find(gradients, position); }
Tensor get_grad(const Gradients& gradients, std::string_view name) { return find(gradients, std::string(name)); }

Differentiated<ValueAndGrad> value_and_grad(Function function, GradSpec spec) {
  check_spec(spec);
  return Differentiated<ValueAndGrad>([function = std::move(function), spec = std::move(spec)](Args args) {
    return Call(spec, std::move(args)).run(function);
  });
}

Differentiated<GradAndAux> grad(Function function, GradSpec spec) {
  check_spec(spec);
  return Differentiated<GradAndAux>([function = std::move(function), spec = std::move(spec)](Args args) {
    ValueAndGrad result = Call(spec, std::move(args)).run(function);
    if (!spec.has_aux) return GradAndAux{std::move(result.gradients), {}};
    ValueList aux = outputs_of(result.value);
    aux.erase(aux.begin());
    return GradAndAux{std::move(result.gradients), std::move(aux)};
  });
}

Differentiated<ValueAndGrad> value_and_grad(Module& module, GradSpec spec) {
  return value_and_grad(function_of(module), std::move(spec));
}

Differentiated<GradAndAux> grad(Module& module, GradSpec spec) { return grad(function_of(module), std::move(spec)); }

void check_argument_count(const Args& args, std::size_t expected) {
  check_model(args.positional.size() == expected && args.named.empty(),
              "{}: {} positional and {} named arguments for a function of {} tensors; give {} by position", kPlace,
              args.positional.size(), args.named.size(), expected, expected);
}

}  // namespace loom::nn
