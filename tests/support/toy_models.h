// Small models for tests of the sharding engine: a chain of blocks under a root that has a parameter of its own.
//
// Letters  D width of the chain, R rows of an input.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/rng.h"
#include "engine/nn/init.h"
#include "engine/nn/module.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "sharding/fully_shard.h"

namespace loom::test {

constexpr std::int64_t kEvenWidth = 4;
constexpr std::int64_t kOddWidth = 5;  // which shards have to be padded for

// y = tanh(x . weight^T); weight [D, D].
class ToyBlock : public nn::Module {
 public:
  explicit ToyBlock(std::int64_t width, DType dtype = DType::kF32)
      : weight(register_parameter("weight", {width, width}, nn::Init::normal(0.5), dtype)) {}
  std::string_view type_name() const override { return "ToyBlock"; }
  nn::ParamSlot& weight;

 protected:
  nn::Value forward(const nn::Args& args) override { return ops::tanh(ops::linear(args.tensor(0), weight.value)); }
};

// tanh of the blocks "layers.0", "layers.1", ... after one another, on h = x . weight^T.
class ToyChain : public nn::Module {
 public:
  ToyChain(std::int64_t width, int blocks, DType dtype = DType::kF32)
      : weight(register_parameter("weight", {width, width}, nn::Init::normal(0.5), dtype)),
        layers(register_module("layers", std::make_shared<nn::ModuleList>())) {
    for (int i = 0; i < blocks; ++i) layers.append(std::make_shared<ToyBlock>(width, dtype));
  }
  std::string_view type_name() const override { return "ToyChain"; }
  ToyBlock& block(std::size_t i) { return static_cast<ToyBlock&>(layers[i]); }

  nn::ParamSlot& weight;
  nn::ModuleList& layers;
  std::set<std::size_t> skipped;  // blocks that forward leaves out
  bool detached = false;          // the blocks' input then requires no gradient

 protected:
  nn::Value forward(const nn::Args& args) override {
    Tensor h = ops::linear(args.tensor(0), weight.value);
    const Tensor side = h;
    if (detached) h = h.detach();
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (!skipped.contains(i)) h = layers[i](h);
    }
    return ops::tanh(detached ? ops::add(h, side) : h);
  }
};

// Wraps every block, then the root.
inline void wrap_chain(ToyChain& chain, const sharding::FullyShardOptions& options) {
  for (std::size_t i = 0; i < chain.layers.size(); ++i) sharding::fully_shard(chain.layers[i], options);
  sharding::fully_shard(chain, options);
}

inline constexpr std::uint64_t kToySeed = 7;

// A chain wrapped as wrap_chain() does, with this rank's rows of its first weights.
inline std::shared_ptr<ToyChain> sharded_chain(std::int64_t width, int blocks,
                                               const sharding::FullyShardOptions& options, DType dtype = DType::kF32) {
  auto chain = std::make_shared<ToyChain>(width, blocks, dtype);
  wrap_chain(*chain, options);
  sharding::materialize_shards(*chain);
  nn::init_weights(*chain, kToySeed);
  return chain;
}

// The same chain, whole.
inline std::shared_ptr<ToyChain> whole_chain(std::int64_t width, int blocks, DType dtype = DType::kF32) {
  auto chain = std::make_shared<ToyChain>(width, blocks, dtype);
  nn::materialize(*chain);
  nn::init_weights(*chain, kToySeed);
  return chain;
}

// Input number `index` [R, D]: the same values wherever it is made.
inline Tensor toy_input(int index, std::int64_t rows, std::int64_t width, DType dtype = DType::kF32) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < rows * width; ++i) {
    values.push_back(normal_at(stream_key(kToySeed, "input " + std::to_string(index)), static_cast<std::uint64_t>(i)));
  }
  return Tensor::from(values, {rows, width}, dtype);
}

// One forward and backward of the mean of the chain's output, times `scale`; the loss.
inline double forward_backward(nn::Module& model, const Tensor& input, double scale = 1) {
  const Tensor loss = ops::scale(ops::mean(model(input)), scale);
  autograd::backward(loss);
  return loss.item();
}

// The path and gradient of every parameter that has one, as this rank holds it.
inline std::vector<std::pair<std::string, std::vector<double>>> gradients(nn::Module& model) {
  std::vector<std::pair<std::string, std::vector<double>>> found;
  for (auto& [path, parameter] : model.named_parameters()) {
    if (parameter.grad().defined()) found.emplace_back(path, parameter.grad().to_vector<double>());
  }
  return found;
}

// The rows [begin, begin + rows) of a whole [.., row_elems] array.
inline std::vector<double> rows_of(const std::vector<double>& whole, std::int64_t begin, std::int64_t rows,
                                   std::int64_t row_elems) {
  return {whole.begin() + begin * row_elems, whole.begin() + (begin + rows) * row_elems};
}

}  // namespace loom::test
