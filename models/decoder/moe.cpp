#include "models/decoder/moe.h"

#include "engine/core/error.h"
#include "engine/nn/functional.h"
#include "engine/nn/layers.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/general.h"
#include "engine/tensor/ops/moe.h"
#include "engine/tensor/ops/routing.h"
#include "models/decoder/decoder_parts.h"
#include "models/decoder/layer_parts.h"
#include "models/decoder/named_module.h"

namespace loom::models {
namespace {

using nn::Args;
using nn::Init;
using nn::Value;

class TopKRouter final : public NamedModule {
 public:
  explicit TopKRouter(const DecoderConfig& c)
      : NamedModule(class_name(c, "TopKRouter")),
        top_k_(c.moe->num_experts_per_tok),
        norm_topk_prob_(c.moe->norm_topk_prob),
        weight_(register_parameter("weight", {c.moe->num_experts, c.hidden_size}, Init::normal(c.initializer_range))) {}

 protected:
  Value forward(const Args& args) override {
    const Tensor logits = ops::linear(args.tensor(0), weight_.value);
    const ops::Routing routing = ops::route(logits, {.k = top_k_, .renormalize = norm_topk_prob_});
    return std::vector<Tensor>{routing.weights, routing.experts};
  }

 private:
  const std::int64_t top_k_;
  const bool norm_topk_prob_;
  nn::ParamSlot& weight_;
};

class Experts final : public NamedModule {
 public:
  explicit Experts(const DecoderConfig& c)
      : NamedModule(class_name(c, "Experts")),
        num_experts_(c.moe->num_experts),
        intermediate_size_(c.moe->moe_intermediate_size),
        gate_up_proj_(register_parameter("gate_up_proj", {num_experts_, 2 * intermediate_size_, c.hidden_size},
                                         Init::normal(c.initializer_range))),
        down_proj_(register_parameter("down_proj", {num_experts_, c.hidden_size, intermediate_size_},
                                      Init::normal(c.initializer_range))) {}

 protected:
  Value forward(const Args& args) override {
    const ops::ExpertRows rows = ops::sort_by_expert(args.tensor(1), num_experts_);
    Tensor x = ops::gather_tokens(args.tensor(0), rows);
    x = ops::grouped_linear(x, gate_up_proj_.value, rows);
    std::vector<Tensor> halves = ops::split_last(x, {intermediate_size_, intermediate_size_});
    if (recomputes_activation(*this)) {
      x = activated(
          *this, halves, [](const auto& h) { return nn::functional::swiglu(h[0], h[1]); },
          [&](const Tensor& a) { return ops::grouped_linear(a, down_proj_.value, rows); });
    } else {
      x = nn::functional::swiglu(halves[0], halves[1]);
      halves.clear();
      x = ops::grouped_linear(x, down_proj_.value, rows);
    }
    return ops::combine_tokens(x, args.tensor(2), rows);
  }

 private:
  const std::int64_t num_experts_;
  const std::int64_t intermediate_size_;
  nn::ParamSlot& gate_up_proj_;
  nn::ParamSlot& down_proj_;
};

class SparseMoeBlock final : public NamedModule {
 public:
  explicit SparseMoeBlock(const DecoderConfig& c)
      : NamedModule(class_name(c, "SparseMoeBlock")),
        experts_(register_module("experts", std::make_shared<Experts>(c))),
        gate_(register_module("gate", std::make_shared<TopKRouter>(c))) {
    const std::int64_t size = c.moe->shared_expert_intermediate_size;
    if (size == 0) return;
    shared_expert_ = register_module("shared_expert", make_gated_mlp(c, size));
    shared_expert_gate_ = register_module("shared_expert_gate",
                                          std::make_shared<nn::Linear>(c.hidden_size, 1, false, c.initializer_range));
  }

 protected:
  Value forward(const Args& args) override {
    const Shape shape = args.tensor(0).shape();
    const Tensor hidden = ops::reshape(args.tensor(0), {shape[0] * shape[1], shape[2]});
    const Value routing = gate_(hidden);
    const Tensor &weights = routing.list()[0], &experts = routing.list()[1];
    Tensor out = experts_(hidden, experts, weights);
    if (shared_expert_) out = ops::add(out, shared(hidden));
    return ops::reshape(out, shape);
  }

 private:
  Tensor shared(const Tensor& hidden) const {
    const Tensor out = shared_expert_(hidden);
    return ops::mul(ops::sigmoid(shared_expert_gate_(hidden).tensor()), out);
  }

  nn::Child<nn::Module> experts_;
  nn::Child<nn::Module> gate_;
  nn::Child<nn::Module> shared_expert_;
  nn::Child<nn::Module> shared_expert_gate_;
};

}  // namespace

std::shared_ptr<nn::Module> make_moe_block(const DecoderConfig& config) {
  require(config.moe.has_value(), "make_moe_block: the config has no experts");
  return std::make_shared<SparseMoeBlock>(config);
}

}  // namespace loom::models
