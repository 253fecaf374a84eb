#include "models/decoder/moe.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "engine/core/error.h"
#include "engine/dist/operators.h"
#include "engine/nn/functional.h"
#include "engine/nn/layers.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/general.h"
#include "engine/tensor/ops/moe.h"
#include "engine/tensor/ops/routing.h"
#include "models/decoder/decoder_parts.h"
#include "models/decoder/expert_exchange.h"
#include "models/decoder/expert_gather.h"
#include "models/decoder/expert_slot.h"
#include "models/decoder/layer_parts.h"
#include "models/decoder/named_module.h"
#include "recompute/checkpoint.h"
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

// Of `tokens` tokens of this rank.
ops::ExpertCapacity capacity_of(const MoeConfig& moe, const ExpertOptions& options, std::int64_t tokens) {
  if (options.capacity_factor == 0) return {};
  const std::int64_t all =
      ops::expert_capacity(tokens, moe.num_experts_per_tok, moe.num_experts, options.capacity_factor);
  return {std::min(all, tokens), options.pad_expert_input_to_capacity};
}

class TopKRouter final : public NamedModule {
 public:
  TopKRouter(const DecoderConfig& c, std::shared_ptr<ExpertSlot> slot)
      : NamedModule(class_name(c, c.moe->sigmoid_router ? "TopkRouter" : "TopKRouter")),
        options_(router_options(*c.moe)),
        slot_(std::move(slot)),
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
    std::vector<Tensor> result{ops::cast(routing.weights, hidden.dtype()), routing.experts, routing.scores};
    if (slot_->options.has_losses()) result.push_back(logits);
    return result;
  }

 private:
  const ops::RouterOptions options_;
  const std::shared_ptr<ExpertSlot> slot_;
  nn::ParamSlot& weight_;
};

class Experts final : public NamedModule, public sharding::ExpertModule {
 public:
  Experts(const DecoderConfig& c, std::shared_ptr<ExpertSlot> slot)
      : NamedModule(class_name(c, c.moe->sigmoid_router ? "NaiveMoe" : "Experts")),
        moe_(*c.moe),
        slot_(std::move(slot)),
        num_experts_(c.moe->num_experts),
        hidden_size_(c.hidden_size),
        intermediate_size_(c.moe->moe_intermediate_size),
        gate_up_proj_(register_parameter("gate_up_proj", {num_experts_, 2 * intermediate_size_, c.hidden_size},
                                         Init::normal(c.initializer_range))),
        down_proj_(register_parameter("down_proj", {num_experts_, c.hidden_size, intermediate_size_},
                                      Init::normal(c.initializer_range))) {}

  std::int64_t expert_count() const override { return num_experts_; }
  std::int64_t choices() const override { return moe_.num_experts_per_tok; }
  std::int64_t row_elems() const override { return hidden_size_; }
  bool gathers_tokens() const override { return gather_.has_value(); }
  void share_experts(const comm::Axis& axis, const std::string& path, const sharding::ExpertSharing& sharing) override {
    if (axis.size() == 1) return;
    if (sharing.dispatcher == sharding::TokenDispatcher::kAllGather) {
      gather_.emplace(axis, num_experts_, path);
    } else {
      exchange_.emplace(axis, num_experts_, path);
      overlaps_ = sharing.overlaps_shared_expert;
    }
  }

  // Whether the dispatch of the next forward can run beside other work.
  bool overlaps() const { return overlaps_ && !recompute::is_checkpointed(*this); }
  // That work, of the next forward alone.
  void set_beside(std::function<void()> work) { beside_ = std::move(work); }

 protected:
  Value forward(const Args& args) override {
    const Tensor &hidden = args.tensor(0), &choices = args.tensor(1), &weights = args.tensor(2);
    const ops::ExpertCapacity capacity = capacity_of(moe_, slot_->options, hidden.shape()[0]);
    if (gather_) {
      return gather_->sum(hidden, choices, weights, capacity,
                          [this](Tensor x, const ops::ExpertRows& rows) { return mlp(std::move(x), rows); });
    }
    const ops::ExpertRows rows = ops::sort_by_expert(choices, num_experts_, capacity);
    Tensor x = ops::gather_tokens(hidden, rows);
    if (!exchange_) return ops::combine_tokens(mlp(std::move(x), rows), weights, rows);
    const ExpertExchange::Dispatched to =
        exchange_->dispatch(std::exchange(x, {}), rows, capacity, std::exchange(beside_, nullptr));
    return ops::combine_tokens(exchange_->combine(mlp(to.rows, to.order), to), weights, rows);
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

  const MoeConfig moe_;
  const std::shared_ptr<ExpertSlot> slot_;
  const std::int64_t num_experts_;
  const std::int64_t hidden_size_;
  const std::int64_t intermediate_size_;
  nn::ParamSlot& gate_up_proj_;
  nn::ParamSlot& down_proj_;
  std::optional<ExpertExchange> exchange_;  // where ranks share the experts: one of the two
  std::optional<ExpertGather> gather_;
  bool overlaps_ = false;
  std::function<void()> beside_;
};

class SparseMoeBlock final : public NamedModule {
 public:
  explicit SparseMoeBlock(const DecoderConfig& c)
      : NamedModule(class_name(c, c.moe->sigmoid_router ? "MoE" : "SparseMoeBlock")),
        moe_(*c.moe),
        slot_(std::make_shared<ExpertSlot>()),
        own_experts_(std::make_shared<Experts>(c, slot_)),
        experts_(register_module("experts", own_experts_)),
        gate_(register_module("gate", std::make_shared<TopKRouter>(c, slot_))) {
    attach(slot_);
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
    const Value routed = gate_(hidden);
    const ops::Routing chosen{routed.list()[0], routed.list()[1], routed.list()[2]};
    const ops::Routing kept = within_capacity(chosen);
    if (training()) count(kept.experts);
    LayerResult result{ops::reshape(mixture(hidden, kept), shape)};
    if (moe_.has_router_loss()) {
      result.loads = loads(chosen.scores, chosen.experts, shape[0]);
    } else if (training() && slot_->options.has_losses()) {
      add_losses(routed.list()[3], chosen, shape[0], result);
    }
    return result.value();
  }

 private:
  ops::Routing within_capacity(const ops::Routing& routing) const {
    const ops::ExpertCapacity capacity = capacity_of(moe_, slot_->options, routing.experts.shape()[0]);
    if (capacity.tokens == 0) return routing;
    const bool probs = slot_->options.drop_policy == TokenDropPolicy::kProbs;
    return ops::drop_beyond_capacity(routing, capacity.tokens,
                                     probs ? ops::DropPolicy::kProbability : ops::DropPolicy::kPosition);
  }

  // Not when backward runs the forward again. No decision of the host depends on it, so the step waits for nothing.
  void count(const Tensor& choices) const {
    slot_->tokens.resize(static_cast<std::size_t>(moe_.num_experts));
    const auto* chosen = static_cast<const std::int64_t*>(choices.raw());
    if (chosen == nullptr || autograd::graph_task_id() != 0) return;
    for (const std::int64_t expert : std::span(chosen, static_cast<std::size_t>(choices.numel()))) {
      ++(expert < 0 ? slot_->dropped : slot_->tokens[static_cast<std::size_t>(expert)]);
    }
  }

  Tensor mixture(const Tensor& hidden, const ops::Routing& routing) {
    Tensor beside;
    if (shared_expert_ && own_experts_->overlaps()) own_experts_->set_beside([&] { beside = shared(hidden); });
    const Tensor out = experts_(hidden, routing.experts, routing.weights);
    if (!shared_expert_) return out;
    if (!beside.defined()) beside = shared(hidden);
    return ops::add(out, beside);
  }

  Tensor shared(const Tensor& hidden) const {
    const Tensor out = shared_expert_(hidden);
    if (!shared_expert_gate_) return out;
    return ops::mul(ops::sigmoid(shared_expert_gate_(hidden).tensor()), out);
  }

  // Of Megatron's losses: its choice is that of the scores alone.
  void add_losses(const Tensor& logits, const ops::Routing& routing, std::int64_t sequences,
                  LayerResult& result) const {
    const ops::RouterScore score = router_options(moe_).score;
    const bool plain = score == ops::RouterScore::kSoftmax;
    const Tensor probabilities = plain ? routing.scores : ops::balance_probabilities(logits, score);
    const Tensor experts =
        plain ? routing.experts : ops::route(logits, {.k = moe_.num_experts_per_tok, .score = score}).experts;
    result.loads = loads(probabilities, experts, sequences);
    if (slot_->options.z_loss_coeff == 0) return;
    const std::vector<std::int64_t> sizes(static_cast<std::size_t>(sequences), logits.shape()[0] / sequences);
    std::vector<Tensor> of_sequences;
    for (const Tensor& of_one : sequences == 1 ? std::vector<Tensor>{logits} : ops::split(logits, sizes, 0)) {
      of_sequences.push_back(ops::reshape(ops::router_z_loss(of_one, 1), {1, 1}));
    }
    result.z = of_sequences.size() == 1 ? of_sequences.front() : ops::concat(of_sequences, 0);
  }

  static Tensor loads(const Tensor& scores, const Tensor& experts, std::int64_t sequences) {
    const std::int64_t count = scores.shape()[1];
    const Shape row{sequences, 1, count};
    const Tensor sums = ops::probability_sums(scores, {.sequences = sequences});
    const Tensor counts = ops::count_choices(experts, count, scores.dtype(), {.sequences = sequences});
    return ops::concat({ops::reshape(sums, row), ops::reshape(counts, row)}, 1);
  }

  const MoeConfig moe_;
  const std::shared_ptr<ExpertSlot> slot_;
  const std::shared_ptr<Experts> own_experts_;
  nn::Child<nn::Module> experts_;
  nn::Child<nn::Module> gate_;
  nn::Child<nn::Module> shared_expert_;
  nn::Child<nn::Module> shared_expert_gate_;
};

std::int64_t sparse_layers(const DecoderConfig& config) {
  std::int64_t layers = 0;
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) layers += is_sparse_layer(config, i) ? 1 : 0;
  return layers;
}

// Over all ranks that share the sequences.
Tensor over_sequences(Tensor x, const SequenceRanks& others, const std::string& tag) {
  if (others.tensor.shared) x = dist::all_reduce(x, others.tensor.shared->ranks, tag, dist::Loss::kOfAll);
  if (others.context == nullptr) return x;
  return dist::all_reduce(dist::all_reduce(x, others.context->ulysses, tag), others.context->ring, tag);
}

// Hugging Face's, of loads that the layers added up.
Tensor added_loss(const DecoderConfig& config, const Tensor& loads, std::int64_t tokens) {
  const double all = static_cast<double>(sparse_layers(config) * tokens);
  const std::vector<Tensor> rows = ops::split(ops::sum(loads, 0), {1, 1}, 0);
  return ops::balance_loss(rows[0], rows[1].detach(), static_cast<double>(config.moe->num_experts) / (all * all));
}

// Megatron's, the mean over the layers, of loads [B, 2 L, E]; S tokens a sequence.
Tensor mean_balance_loss(const MoeConfig& moe, bool by_sequence, const Tensor& loads, std::int64_t tokens) {
  const std::int64_t sequences = loads.shape()[0], layers = loads.shape()[1] / 2;
  const Tensor summed = by_sequence ? loads : ops::reshape(ops::sum(loads, 0), {1, 2 * layers, loads.shape()[2]});
  const std::vector<Tensor> rows =
      ops::split(summed, std::vector<std::int64_t>(static_cast<std::size_t>(2 * layers), 1), 1);
  const auto s = static_cast<double>(tokens), b = static_cast<double>(sequences);
  const double squared = by_sequence ? s * s * b : s * s * b * b;
  const double factor = static_cast<double>(moe.num_experts) / (static_cast<double>(moe.num_experts_per_tok) * squared);
  Tensor sum;
  for (std::size_t layer = 0; layer < rows.size(); layer += 2) {
    const Tensor loss = ops::balance_loss(rows[layer], rows[layer + 1].detach(), factor / static_cast<double>(layers));
    sum = sum.defined() ? ops::add(sum, loss) : loss;
  }
  return sum;
}

}  // namespace

std::shared_ptr<nn::Module> make_moe_block(const DecoderConfig& config) {
  require(config.moe.has_value(), "make_moe_block: the config has no experts");
  return std::make_shared<SparseMoeBlock>(config);
}

LayerResult with_losses_of(const DecoderConfig& config, const LayerResult& before, LayerResult result) {
  const auto joined = [](const Tensor& old, const Tensor& next, auto&& join) {
    return !old.defined() ? next : !next.defined() ? old : join(old, next);
  };
  const auto behind = [](const Tensor& a, const Tensor& b) { return ops::concat({a, b}, 1); };
  const auto added = [](const Tensor& a, const Tensor& b) { return ops::add(a, b); };
  const bool adds = config.moe->has_router_loss();
  result.loads = adds ? joined(before.loads, result.loads, added) : joined(before.loads, result.loads, behind);
  result.z = joined(before.z, result.z, behind);
  return result;
}

std::vector<Tensor> router_losses(const DecoderConfig& config, const ExpertOptions& options, const LayerResult& result,
                                  const SequenceRanks& others) {
  const std::int64_t ranks = others.context == nullptr ? 1 : others.context->degrees().ranks();
  const Shape& shape = result.hidden.shape();
  const std::int64_t sequence = others.tensor.whole_length(shape[1]) * ranks;
  const auto loads = [&] { return over_sequences(result.loads, others, "expert loads"); };
  if (config.moe->has_router_loss()) return {added_loss(config, loads(), shape[0] * sequence)};
  std::vector<Tensor> losses;
  if (options.balances()) {
    const bool by_sequence = options.load_balancing == LoadBalancing::kSeqAuxLoss;
    losses.push_back(mean_balance_loss(*config.moe, by_sequence, loads(), sequence));
  }
  if (options.z_loss_coeff != 0) {
    const Tensor z = over_sequences(result.z, others, "router z-loss");
    const std::int64_t parts = ranks * (others.tensor.shared ? others.tensor.shared->ranks.size() : 1);
    losses.push_back(ops::scale(ops::mean(z), 1.0 / static_cast<double>(parts)));
  }
  return losses;
}

}  // namespace loom::models
