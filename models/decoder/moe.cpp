#include "models/decoder/moe.h"

#include "engine/core/error.h"
#include "engine/nn/functional.h"
#include "engine/nn/layers.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/general.h"
#include "engine/tensor/ops/moe.h"
#include "engine/tensor/ops/routing.h"
#include "models/decoder/decoder_parts.h"
#include "models/decoder/expert_exchange.h"
#include "models/decoder/layer_parts.h"
#include "models/decoder/named_module.h"
#include "sharding/expert/expert_module.h"

namespace loom::models {
namespace {

using nn::Args;
using nn::Init;
using nn::Value;

ops::RouterOptions router_options(const MoeConfig& moe) {
  return {.k = moe.num_experts_per_tok,
          .score = moe.sigmoid_router ? ops::RouterScore::kSigmoid : ops::RouterScore::kSoftmax,
          .renormalize = moe.norm_topk_prob,
          .scale = moe.routed_scaling_factor,
          .groups = moe.n_group,
          .best_groups = moe.topk_group,
          .best_in_group = moe.n_group > 1 ? 2 : 1};
}

class TopKRouter final : public NamedModule {
 public:
  explicit TopKRouter(const DecoderConfig& c)
      : NamedModule(class_name(c, c.moe->sigmoid_router ? "TopkRouter" : "TopKRouter")),
        options_(router_options(*c.moe)),
        weight_(register_parameter("weight", {c.moe->num_experts, c.hidden_size}, Init::normal(c.initializer_range))) {
    if (!c.moe->sigmoid_router) return;
    register_buffer("e_score_correction_bias", Tensor::meta({c.moe->num_experts}, DType::kF32), /*persistent=*/true);
  }

 protected:
  // DeepSeek-V3's router computes in fp32.
  Value forward(const Args& args) override {
    const Tensor& hidden = args.tensor(0);
    const bool corrected = !own_buffers().empty();
    const DType dtype = corrected && hidden.dtype() != DType::kF64 ? DType::kF32 : hidden.dtype();
    const Tensor logits = ops::linear(ops::cast(hidden, dtype), ops::cast(weight_.value, dtype));
    const ops::Routing routing = ops::route(logits, options_, corrected ? own_buffers()[0].value : Tensor{});
    return std::vector<Tensor>{ops::cast(routing.weights, hidden.dtype()), routing.experts, routing.scores};
  }

 private:
  const ops::RouterOptions options_;
  nn::ParamSlot& weight_;
};

class Experts final : public NamedModule, public sharding::ExpertModule {
 public:
  explicit Experts(const DecoderConfig& c)
      : NamedModule(class_name(c, c.moe->sigmoid_router ? "NaiveMoe" : "Experts")),
        num_experts_(c.moe->num_experts),
        choices_(c.moe->num_experts_per_tok),
        hidden_size_(c.hidden_size),
        intermediate_size_(c.moe->moe_intermediate_size),
        gate_up_proj_(register_parameter("gate_up_proj", {num_experts_, 2 * intermediate_size_, c.hidden_size},
                                         Init::normal(c.initializer_range))),
        down_proj_(register_parameter("down_proj", {num_experts_, c.hidden_size, intermediate_size_},
                                      Init::normal(c.initializer_range))) {}

  std::int64_t expert_count() const override { return num_experts_; }
  std::int64_t choices() const override { return choices_; }
  std::int64_t row_elems() const override { return hidden_size_; }
  void share_experts(const comm::Axis& axis, const std::string& path) override {
    if (axis.size() > 1) exchange_.emplace(axis, num_experts_, path);
  }

 protected:
  Value forward(const Args& args) override {
    const ops::ExpertRows rows = ops::sort_by_expert(args.tensor(1), num_experts_);
    Tensor x = ops::gather_tokens(args.tensor(0), rows);
    if (!exchange_) return ops::combine_tokens(mlp(std::move(x), rows), args.tensor(2), rows);
    const ExpertExchange::Dispatched to = exchange_->dispatch(std::exchange(x, {}), rows);
    return ops::combine_tokens(exchange_->combine(mlp(to.rows, to.order), to), args.tensor(2), rows);
  }

 private:
  // x [R, H] in order of expert -> [R, H].
  Tensor mlp(Tensor x, const ops::ExpertRows& rows) const {
    x = ops::grouped_linear(x, gate_up_proj_.value, rows);
    std::vector<Tensor> halves = ops::split_last(x, {intermediate_size_, intermediate_size_});
    if (recomputes_activation(*this)) {
      return activated(
          *this, halves, [](const auto& h) { return nn::functional::swiglu(h[0], h[1]); },
          [&](const Tensor& a) { return ops::grouped_linear(a, down_proj_.value, rows); });
    }
    x = nn::functional::swiglu(halves[0], halves[1]);
    halves.clear();
    return ops::grouped_linear(x, down_proj_.value, rows);
  }

  const std::int64_t num_experts_;
  const std::int64_t choices_;  // of a token
  const std::int64_t hidden_size_;
  const std::int64_t intermediate_size_;
  nn::ParamSlot& gate_up_proj_;
  nn::ParamSlot& down_proj_;
  std::optional<ExpertExchange> exchange_;  // where ranks share the experts
};

class SparseMoeBlock final : public NamedModule {
 public:
  explicit SparseMoeBlock(const DecoderConfig& c)
      : NamedModule(class_name(c, c.moe->sigmoid_router ? "MoE" : "SparseMoeBlock")),
        has_router_loss_(c.moe->has_router_loss()),
        experts_(register_module("experts", std::make_shared<Experts>(c))),
        gate_(register_module("gate", std::make_shared<TopKRouter>(c))) {
    const std::int64_t size = c.moe->shared_expert_intermediate_size;
    if (size == 0) return;
    const bool gated = !c.moe->sigmoid_router;
    shared_expert_ = register_module(gated ? "shared_expert" : "shared_experts", make_gated_mlp(c, size));
    if (!gated) return;
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
    out = ops::reshape(out, shape);
    if (!has_router_loss_) return out;
    return std::vector<Tensor>{out, loads(routing.list()[2], experts, shape[0])};
  }

 private:
  Tensor shared(const Tensor& hidden) const {
    const Tensor out = shared_expert_(hidden);
    if (!shared_expert_gate_) return out;
    return ops::mul(ops::sigmoid(shared_expert_gate_(hidden).tensor()), out);
  }

  static Tensor loads(const Tensor& scores, const Tensor& experts, std::int64_t sequences) {
    const std::int64_t count = scores.shape()[1];
    const Shape row{sequences, 1, count};
    const Tensor sums = ops::probability_sums(scores, {.sequences = sequences});
    const Tensor counts = ops::count_choices(experts, count, scores.dtype(), {.sequences = sequences});
    return ops::concat({ops::reshape(sums, row), ops::reshape(counts, row)}, 1);
  }

  const bool has_router_loss_;
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

Tensor router_loss(const DecoderConfig& config, const Tensor& loads, std::int64_t tokens) {
  std::int64_t layers = 0;
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) layers += is_sparse_layer(config, i) ? 1 : 0;
  const double all = static_cast<double>(layers * tokens);
  const std::vector<Tensor> rows = ops::split(ops::sum(loads, 0), {1, 1}, 0);
  return ops::balance_loss(rows[0], rows[1].detach(), static_cast<double>(config.moe->num_experts) / (all * all));
}

}  // namespace loom::models
