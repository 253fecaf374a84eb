// Modules for recompute tests, their gradients, and the two kinds.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/nn/init.h"
#include "engine/nn/module.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/composed.h"
#include "recompute/checkpoint.h"
#include "tests/support/one_rank.h"

namespace loom::test {

using Floats = std::vector<float>;

// A module made of a function of its arguments and its weight [dim]; counts its forwards.
class Fn final : public nn::Module {
 public:
  using Body = std::function<nn::Value(const nn::Args& args, const Tensor& weight)>;
  Fn(std::int64_t dim, Body body)
      : weight(register_parameter("weight", {dim}, nn::Init::normal(1))), body_(std::move(body)) {}
  std::string_view type_name() const override { return "Fn"; }

  nn::ParamSlot& weight;
  int begun = 0;
  int ended = 0;

 protected:
  nn::Value forward(const nn::Args& args) override {
    ++begun;
    nn::Value result = body_(args, weight.value);
    ++ended;
    return result;
  }

 private:
  const Body body_;
};

// Children "0", "1", ... one after another on the first argument; a module with a forward.
class Chain final : public nn::Module {
 public:
  explicit Chain(const std::vector<std::shared_ptr<nn::Module>>& links) {
    for (const auto& link : links) links_.push_back(&*register_module(std::to_string(links_.size()), link));
  }
  std::string_view type_name() const override { return "Chain"; }

 protected:
  nn::Value forward(const nn::Args& args) override {
    Tensor x = args.tensor(0);
    for (nn::Module* link : links_) x = (*link)(x).tensor();
    return x;
  }

 private:
  std::vector<nn::Module*> links_;
};

// tanh(x * w) * w: three tensors of x's size are saved along the way, and x.
inline std::shared_ptr<Fn> twist(std::int64_t dim) {
  return std::make_shared<Fn>(dim, [](const nn::Args& args, const Tensor& w) -> nn::Value {
    return ops::mul(ops::tanh(ops::mul(args.tensor(0), w)), w);
  });
}

inline void fill(nn::Module& module) {
  nn::materialize(module);
  nn::init_weights(module, /*seed=*/3);
}

// 0.1, 0.2, ...
inline Tensor input(std::int64_t dim, bool requires_grad = true) {
  Floats values;
  for (std::int64_t i = 0; i < dim; ++i) values.push_back(0.1F * static_cast<float>(i + 1));
  const Tensor tensor = Tensor::from(values, {dim});
  tensor.set_requires_grad(requires_grad);
  return tensor;
}

inline Floats floats(const Tensor& tensor) { return tensor.defined() ? tensor.to_vector<float>() : Floats{}; }

enum class Kind { kReentrant, kRecorded };
inline std::string to_string(Kind kind) { return kind == Kind::kReentrant ? "Reentrant" : "Recorded"; }

inline void checkpoint(nn::Module& module, Kind kind, std::string path = "block") {
  recompute::checkpoint(module, {.path = std::move(path), .use_reentrant = kind == Kind::kReentrant});
}

}  // namespace loom::test
