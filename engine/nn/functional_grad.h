// Functional gradients: value_and_grad() and grad() make of a function one that returns its gradients as values.
//
//   const auto step = nn::value_and_grad(model, {.positions = std::nullopt, .weights = model.named_parameters()});
//   const nn::ValueAndGrad result = step(ids);
//   for (const Tensor& gradient : result.gradients.tuple()) ...
//
// Returned   positions   weights         gradients
//            one         none            one tensor, of that input
//            several     none            a tuple, in their order
//            none        one or a list   one tensor or a tuple, in their order
//            both        both            a pair: inputs(), weights()
//            none        none            ConfigError
// Function   takes positional and named arguments, or tensors, or is a module. What it returns is one output, or a list
//            or dict of outputs. The gradient is that of the sum of all outputs; with has_aux of the first one, and the
//            others are returned with it. An output need not be a scalar: its cotangent is ones, or is given.
// Inputs     enter the function as leaves of a graph that ends with the call: a tensor given twice has a gradient at
//            each position. Inputs and weights that the outputs do not depend on have zeros.
// Weights    are leaves that require gradients. Nothing is added to grad() of any tensor; a caller that accumulates
//            gradients adds them.
// Bits       those of autograd::backward().
// Refused    gradients of gradients: the tape does not record backward. A call inside such a function, and an input
//            that is the result of a recorded operator, raise ModelError while the grad mode is on. So do sharded
//            parameters, whose gradients the groups reduce, and reentrant recompute, which accumulates.
// Errors     ConfigError for a wrong spec; ModelError for a call that does not fit it.
// Threads    the rank's host thread; every rank has its own.
// Source     mindspore.grad, mindspore.value_and_grad, mindspore.get_grad.
#pragma once

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "engine/nn/module.h"
#include "engine/nn/value.h"

namespace loom::nn {

// The inputs to differentiate by: none, one, or a tuple of positions, counted from 0.
class GradPositions {
 public:
  GradPositions(std::nullopt_t) : is_given_(false) {}
  GradPositions(int position) : list_{position} {}
  GradPositions(std::initializer_list<int> tuple) : list_(tuple), is_tuple_(true) {}
  GradPositions(std::vector<int> tuple) : list_(std::move(tuple)), is_tuple_(true) {}

  bool is_given() const { return is_given_; }
  bool is_tuple() const { return is_tuple_; }
  const std::vector<int>& list() const { return list_; }

 private:
  std::vector<int> list_;
  bool is_given_ = true;
  bool is_tuple_ = false;
};

// The parameters to differentiate by: none, one, or a list. A parameter without a name has that of its storage.
class GradWeights {
 public:
  using Named = std::pair<std::string, Tensor>;

  GradWeights(std::nullopt_t = std::nullopt) : is_given_(false) {}
  GradWeights(Tensor weight);
  GradWeights(Named weight) : list_{std::move(weight)} {}
  GradWeights(const std::vector<Tensor>& list);
  GradWeights(std::vector<Named> list) : list_(std::move(list)), is_list_(true) {}  // Module::named_parameters()

  bool is_given() const { return is_given_; }
  bool is_list() const { return is_list_; }
  const std::vector<Named>& list() const { return list_; }

 private:
  std::vector<Named> list_;
  bool is_given_ = true;
  bool is_list_ = false;
};

struct GradSpec {
  GradPositions positions = 0;
  GradWeights weights = {};
  bool has_aux = false;     // needs at least two outputs
  bool return_ids = false;  // gradients have ids, for pairs() and get_grad()
  // The last positional argument of a call is the cotangent of the differentiated output, or a list of one for each.
  bool sens_param = false;
};

// Whose gradient it is: the position of an input, or the name of a parameter.
using GradId = std::variant<int, std::string>;

// The gradients of one half of a spec: one tensor, or a tuple.
class GradPart {
 public:
  GradPart() = default;  // of a half that the spec does not have
  // `ids`: none without return_ids.
  GradPart(std::vector<Tensor> gradients, std::vector<GradId> ids, bool is_tuple)
      : gradients_(std::move(gradients)), ids_(std::move(ids)), is_tuple_(is_tuple) {}

  std::size_t size() const { return gradients_.size(); }
  bool is_tuple() const { return is_tuple_; }
  // Throw ModelError for the other form.
  const Tensor& tensor() const;
  const std::vector<Tensor>& tuple() const;
  // Throws ModelError without return_ids.
  std::vector<std::pair<GradId, Tensor>> pairs() const;

 private:
  std::vector<Tensor> gradients_;
  std::vector<GradId> ids_;
  bool is_tuple_ = false;
};

class Gradients {
 public:
  Gradients() = default;
  Gradients(GradPart inputs, GradPart weights) : inputs_(std::move(inputs)), weights_(std::move(weights)) {}

  const GradPart& inputs() const { return inputs_; }
  const GradPart& weights() const { return weights_; }
  // Of the only half; throw ModelError for a pair.
  const Tensor& tensor() const { return only().tensor(); }
  const std::vector<Tensor>& tuple() const { return only().tuple(); }

 private:
  const GradPart& only() const;

  GradPart inputs_;
  GradPart weights_;
};

// The gradient with an id, of a spec with return_ids. Throws ModelError naming the ids there are.
Tensor get_grad(const Gradients& gradients, int position);
Tensor get_grad(const Gradients& gradients, std::string_view name);

// What value_and_grad() gives. `value` is what the function returned, its tensors without graph; with has_aux the
// further outputs are part of it.
struct ValueAndGrad {
  Value value;
  Gradients gradients;
};

// What grad() gives. `aux`: the outputs after the first, with has_aux.
struct GradAndAux {
  Gradients gradients;
  ValueList aux;
};

// A function whose call gives a Result.
template <class Result>
class Differentiated {
 public:
  explicit Differentiated(std::function<Result(Args)> run) : run_(std::move(run)) {}

  template <class... T>
  Result operator()(T&&... arguments) const {
    Args args;
    (args.add(std::forward<T>(arguments)), ...);
    return run_(std::move(args));
  }
  Result call(Args args) const { return run_(std::move(args)); }

 private:
  std::function<Result(Args)> run_;
};

using Function = std::function<Value(const Args&)>;

// Throw ConfigError when the spec is wrong by itself. A module outlives the result.
Differentiated<ValueAndGrad> value_and_grad(Function function, GradSpec spec = {});
Differentiated<ValueAndGrad> value_and_grad(Module& module, GradSpec spec = {});
Differentiated<GradAndAux> grad(Function function, GradSpec spec = {});
Differentiated<GradAndAux> grad(Module& module, GradSpec spec = {});

// Throws ModelError naming both counts.
void check_argument_count(const Args& args, std::size_t expected);

// A function of tensors as a function of arguments.
template <class Result, class... T, std::size_t... kIndex>
Function function_of(std::function<Result(T...)> f, std::index_sequence<kIndex...>) {
  return [f = std::move(f)](const Args& args) -> Value {
    check_argument_count(args, sizeof...(T));
    return f(args.tensor(kIndex)...);
  };
}
template <class Result, class... T>
Function function_of(std::function<Result(T...)> f) {
  static_assert((std::is_convertible_v<const Tensor&, T> && ...),
                "a function to differentiate takes tensors, or one 'const nn::Args&'");
  return function_of(std::move(f), std::index_sequence_for<T...>{});
}

// Functions of tensors, whose parameters are not templates: [&](const Tensor& x, const Tensor& y) { return x * y; }.
template <class F>
concept TakesTensors = !std::is_invocable_v<F, const Args&> && !std::is_convertible_v<F, Module&> && requires(F f) {
  std::function{std::move(f)};
};

template <TakesTensors F>
Differentiated<ValueAndGrad> value_and_grad(F f, GradSpec spec = {}) {
  return value_and_grad(function_of(std::function{std::move(f)}), std::move(spec));
}
template <TakesTensors F>
Differentiated<GradAndAux> grad(F f, GradSpec spec = {}) {
  return grad(function_of(std::function{std::move(f)}), std::move(spec));
}

}  // namespace loom::nn
