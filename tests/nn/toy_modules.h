// Small modules for tests.
#pragma once

#include <memory>

#include "engine/nn/functional.h"
#include "engine/nn/layers.h"
#include "tests/tensor/tensors.h"

namespace loom::test {

// Letters: D model dim, F hidden dim.
class Mlp final : public nn::Module {
 public:
  Mlp(std::int64_t dim, std::int64_t hidden)
      : gate_(register_module("gate_proj", std::make_shared<nn::Linear>(dim, hidden, false, 0.1))),
        up_(register_module("up_proj", std::make_shared<nn::Linear>(dim, hidden, false, 0.1))),
        down_(register_module("down_proj", std::make_shared<nn::Linear>(hidden, dim, true, 0.1))) {}
  std::string_view type_name() const override { return "Mlp"; }

 protected:
  nn::Value forward(const nn::Args& args) override {
    const Tensor& x = args.tensor(0);
    return down_(nn::functional::swiglu(gate_(x), up_(x)));
  }

 private:
  nn::Linear& gate_;
  nn::Linear& up_;
  nn::Linear& down_;
};

// Pre-norm attention with H heads of D / H and an Mlp.
class Block final : public nn::Module {
 public:
  Block(std::int64_t dim, std::int64_t heads)
      : heads_(heads),
        norm_(register_module("input_layernorm", std::make_shared<nn::RMSNorm>(dim, 1e-6))),
        qkv_(register_module("qkv_proj", std::make_shared<nn::Linear>(dim, 3 * dim, true, 0.1))),
        out_(register_module("o_proj", std::make_shared<nn::Linear>(dim, dim, false, 0.1))),
        mlp_norm_(register_module("post_attention_layernorm", std::make_shared<nn::RMSNorm>(dim, 1e-6))),
        mlp_(register_module("mlp", std::make_shared<Mlp>(dim, 2 * dim))) {}
  std::string_view type_name() const override { return "Block"; }

 protected:
  nn::Value forward(const nn::Args& args) override {
    const Tensor& x = args.tensor(0);
    const Tensor h = ops::add(x, attend(norm_(x)));
    return ops::add(h, mlp_(mlp_norm_(h)));
  }

 private:
  Tensor attend(const Tensor& x) {
    const std::int64_t batch = x.shape()[0], seq = x.shape()[1], dim = x.shape()[2];
    const Shape split{batch, seq, heads_, dim / heads_};
    const std::vector<Tensor> qkv = ops::split_last(qkv_(x), {dim, dim, dim});
    const Tensor y = nn::functional::attention(ops::reshape(qkv[0], split), ops::reshape(qkv[1], split),
                                               ops::reshape(qkv[2], split), 0.35);
    return out_(ops::reshape(y, x.shape()));
  }

  const std::int64_t heads_;
  nn::RMSNorm& norm_;
  nn::Linear& qkv_;
  nn::Linear& out_;
  nn::RMSNorm& mlp_norm_;
  Mlp& mlp_;
};

// Embedding, blocks, final norm, head tied to the embedding. forward(ids, targets) is the loss.
class ToyModel final : public nn::Module {
 public:
  ToyModel(std::int64_t vocab, std::int64_t dim, std::int64_t heads, int layers)
      : embed_(register_module("embed_tokens", std::make_shared<nn::Embedding>(vocab, dim, 0.1))),
        layers_(register_module("layers", std::make_shared<nn::ModuleList>())),
        norm_(register_module("norm", std::make_shared<nn::RMSNorm>(dim, 1e-6))),
        head_(register_module("lm_head", std::make_shared<nn::TiedLinear>(embed_.weight))) {
    for (int i = 0; i < layers; ++i) layers_.append(std::make_shared<Block>(dim, heads));
  }
  std::string_view type_name() const override { return "ToyModel"; }

 protected:
  nn::Value forward(const nn::Args& args) override {
    Tensor h = embed_(args.tensor(0));
    for (std::size_t i = 0; i < layers_.size(); ++i) h = layers_[i](h);
    return ops::cross_entropy(head_(norm_(h)), args.tensor(1));
  }

 private:
  nn::Embedding& embed_;
  nn::ModuleList& layers_;
  nn::RMSNorm& norm_;
  nn::TiedLinear& head_;
};

}  // namespace loom::test
