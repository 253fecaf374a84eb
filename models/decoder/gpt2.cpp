// GPT-2: LayerNorm, learned positions, Conv1D projections, GELU in its tanh form, dropout while it trains.
#include <cmath>
#include <cstring>

#include "engine/dist/tensor_slot.h"
#include "engine/nn/absent.h"
#include "engine/nn/functional.h"
#include "engine/nn/layers.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/composed.h"
#include "engine/tensor/ops/decoding.h"
#include "engine/tensor/ops/general.h"
#include "models/decoder/cache_call.h"
#include "models/decoder/decoder_parts.h"
#include "models/decoder/layer_parts.h"
#include "sharding/pipeline/pipeline_parts.h"
#include "sharding/tensor/tensor_plan.h"

namespace loom::models {
namespace {

using nn::Args;
using nn::Value;

// Projections back into the residual stream start smaller: two of them a layer add up.
double residual_std(const DecoderConfig& c) {
  return c.initializer_range / std::sqrt(2.0 * static_cast<double>(c.num_hidden_layers));
}

std::shared_ptr<nn::LayerNorm> norm(const DecoderConfig& c) {
  return std::make_shared<nn::LayerNorm>(c.hidden_size, c.norm_eps);
}

// 0, 1, ..., S - 1, on the host.
Tensor all_positions(std::int64_t length) {
  Tensor ids = Tensor::host({length}, DType::kI32, "position ids");
  for (std::int64_t i = 0; i < length; ++i) ids.data<std::int32_t>()[i] = static_cast<std::int32_t>(i);
  return ids;
}

// Dropout of hidden states, of which a rank may have some tokens.
Tensor dropped(const Tensor& hidden, double p, const nn::Module& module) {
  const dist::TensorSlot& tensor = *module.attachment<dist::TensorSlot>();
  ops::DropoutPart part;
  if (tensor.cuts_tokens()) part = {.cut = tensor.rank(), .cuts = tensor.ranks()};
  return ops::dropout(hidden, p, module.training(), part);
}

// Of the tokens that a rank has of hidden states.
Tensor own_positions(const Tensor& ids, const dist::TensorSlot& tensor) {
  const std::int64_t length = ids.shape()[-1], own = tensor.own_length(length);
  if (own == length) return ids;
  Shape shape = ids.shape();
  shape[-1] = own;
  if (ids.is_meta()) return Tensor::meta(shape, ids.dtype(), "position ids");
  const Tensor part = Tensor::host(shape, ids.dtype(), "position ids");
  const auto bytes = static_cast<std::size_t>(own * element_bytes(ids.dtype()));
  for (std::int64_t row = 0; row < part.numel() / own; ++row) {
    const std::int64_t first = row * length + tensor.rank() * own;
    std::memcpy(static_cast<std::byte*>(part.raw()) + static_cast<std::size_t>(row) * bytes,
                static_cast<const std::byte*>(ids.raw()) + first * element_bytes(ids.dtype()), bytes);
  }
  return part;
}

class Gpt2Attention final : public nn::Module {
 public:
  explicit Gpt2Attention(const DecoderConfig& c)
      : hidden_size_(c.hidden_size),
        heads_(c.num_attention_heads),
        scale_(attention_scale(c)),
        attention_dropout_(c.attention_dropout),
        residual_dropout_(c.residual_dropout),
        c_attn_(register_module("c_attn",
                                std::make_shared<nn::Conv1D>(c.hidden_size, 3 * c.hidden_size, c.initializer_range))),
        c_proj_(
            register_module("c_proj", std::make_shared<nn::Conv1D>(c.hidden_size, c.hidden_size, residual_std(c)))) {
    attach_batch_rows(*this);
    attach(std::make_shared<dist::TensorSlot>(dist::TensorSlot{.heads = heads_}));
  }
  std::string_view type_name() const override { return "GPT2Attention"; }

 protected:
  Value forward(const Args& args) override {
    const dist::TensorSlot& tensor = *attachment<dist::TensorSlot>();
    const std::int64_t heads = heads_ / tensor.ranks(), width = hidden_size_ / tensor.ranks();
    const std::vector<Tensor> qkv = ops::split_last(c_attn_(args.tensor(0)).tensor(), {width, width, width});
    const Tensor q = split_heads(qkv[0], heads), k = split_heads(qkv[1], heads), v = split_heads(qkv[2], heads);
    if (const auto cache = cache_part(optional_argument(args, 2)))
      return c_proj_(join_heads(ops::cached_attention(q, k, v, scale_, *cache)));
    const auto attend = [scale = scale_, dropout = training() ? attention_dropout_ : 0.0,
                         first_head = tensor.rank() * heads,
                         ends = segment_ends(optional_argument(args, 1))](const auto& qkv) {
      return dropout > 0 ? ops::composed::plain_attention(qkv[0], qkv[1], qkv[2], scale, /*causal=*/true, ends, dropout,
                                                          first_head)
                         : nn::functional::plain_attention(qkv[0], qkv[1], qkv[2], scale, /*causal=*/true, ends);
    };
    const Tensor out = core_attention(*this, {q, k, v}, attend);
    return dropped(c_proj_(join_heads(out)).tensor(), residual_dropout_, *this);
  }

 private:
  const std::int64_t hidden_size_;
  const std::int64_t heads_;
  const double scale_;
  const double attention_dropout_;
  const double residual_dropout_;
  nn::Child<nn::Module> c_attn_;
  nn::Child<nn::Module> c_proj_;
};

class Gpt2Mlp final : public nn::Module {
 public:
  explicit Gpt2Mlp(const DecoderConfig& c)
      : c_fc_(register_module("c_fc",
                              std::make_shared<nn::Conv1D>(c.hidden_size, c.intermediate_size, c.initializer_range))),
        c_proj_(register_module("c_proj",
                                std::make_shared<nn::Conv1D>(c.intermediate_size, c.hidden_size, residual_std(c)))),
        residual_dropout_(c.residual_dropout) {
    attach_tensor(*this);
  }
  std::string_view type_name() const override { return "GPT2MLP"; }

 protected:
  Value forward(const Args& args) override {
    const Tensor out = activated(
        *this, {c_fc_(args.tensor(0))}, [](const auto& x) { return nn::functional::gelu(x[0], ops::Gelu::kTanh); },
        [this](const Tensor& x) { return c_proj_(x).tensor(); });
    return dropped(out, residual_dropout_, *this);
  }

 private:
  nn::Child<nn::Module> c_fc_;
  nn::Child<nn::Module> c_proj_;
  const double residual_dropout_;
};

class Gpt2Block final : public nn::Module {
 public:
  explicit Gpt2Block(const DecoderConfig& c)
      : ln_1_(register_module("ln_1", norm(c))),
        attn_(register_module("attn", std::make_shared<Gpt2Attention>(c))),
        ln_2_(register_module("ln_2", norm(c))),
        mlp_(register_module("mlp", std::make_shared<Gpt2Mlp>(c))) {
    attach_batch_rows(*this);
  }
  std::string_view type_name() const override { return "GPT2Block"; }

 protected:
  Value forward(const Args& args) override {
    Tensor residual = args.tensor(0);
    Tensor hidden = normed(*this, ln_1_, residual,
                           [&](const Tensor& x) { return run_layer(*attn_, LayerOptions::of(args, 1), x); });
    hidden = ops::add(hidden, residual);
    residual = hidden;
    hidden = normed(*this, ln_2_, hidden, [this](const Tensor& x) { return mlp_(x).tensor(); });
    return ops::add(residual, hidden);
  }

 private:
  nn::Child<nn::Module> ln_1_;
  nn::Child<nn::Module> attn_;
  nn::Child<nn::Module> ln_2_;
  nn::Child<nn::Module> mlp_;
};

class Gpt2Model final : public nn::Module {
 public:
  explicit Gpt2Model(const DecoderConfig& c)
      : wte(register_module("wte", std::make_shared<nn::Embedding>(c.vocab_size, c.hidden_size, c.initializer_range))),
        config_(c),
        wpe_(register_module(
            "wpe", std::make_shared<nn::Embedding>(c.max_position_embeddings, c.hidden_size, c.initializer_range))),
        h_(register_module("h", std::make_shared<nn::ModuleList>())),
        ln_f_(register_module("ln_f", norm(c))) {
    for (std::int64_t i = 0; i < c.num_hidden_layers; ++i) h_.append(std::make_shared<Gpt2Block>(c));
    h_.attach(std::make_shared<LayerList>(LayerList{"attn", "mlp"}));
    attach_batch_rows(*this);
    attach_tensor(*this);
  }
  std::string_view type_name() const override { return "GPT2Model"; }

  nn::Child<nn::Embedding> wte;

 protected:
  Value forward(const Args& args) override {
    const Value& given = args.find("inputs_embeds");  // of a stage that has no embedding
    const Shape& shape = given.is_none() ? args.tensor(0).shape() : given.tensor().shape();
    const auto cache = CacheCall::of(args, shape, config_);
    Tensor hidden = given.is_none() ? embeddings(args, cache) : given.tensor();
    const Value& ends = args.find("actual_seq_len");
    if (!cache) {
      hidden =
          run_layers(h_, {{std::move(hidden), ends}, {}}, [this](std::size_t i, const Args& a) {
            return nn::is_absent(h_[i]) ? a.positional[0] : result_of_layer(h_[i], {a.positional[1], {}}, a.tensor(0));
          }).tensor();
      if (nn::is_absent(*ln_f_)) return hidden;
      return ln_f_(hidden);
    }
    for (std::size_t i = 0; i < h_.size(); ++i) hidden = run_layer(h_[i], {ends, cache->layer(i)}, hidden);
    cache->finish();
    return ln_f_(hidden);
  }

 private:
  Tensor embeddings(const Args& args, const std::optional<CacheCall>& cache) {
    const std::int64_t length = check_length(args.tensor(0).shape(), 2, config_);
    const dist::TensorSlot& tensor = *attachment<dist::TensorSlot>();
    const Tensor sum = ops::add(wte(args.tensor(0)), wpe_(own_positions(positions(args, length, cache), tensor)));
    return dropped(sum, config_.embedding_dropout, *this);
  }

  static Tensor positions(const Args& args, std::int64_t length, const std::optional<CacheCall>& cache) {
    if (cache) return cache->position_ids();
    const Value& given = args.find("position_ids");
    return given.is_none() ? all_positions(length) : given.tensor();
  }

  const DecoderConfig config_;
  nn::Child<nn::Module> wpe_;
  nn::ModuleList& h_;
  nn::Child<nn::Module> ln_f_;
};

class Gpt2LMHeadModel final : public nn::Module {
 public:
  explicit Gpt2LMHeadModel(const DecoderConfig& c)
      : config_(c),
        transformer_(register_module("transformer", std::make_shared<Gpt2Model>(c))),
        lm_head_(register_module("lm_head", make_lm_head(c, transformer_.wte->weight))) {
    const std::string layer = "transformer.h.{*}.";
    attach(std::make_shared<sharding::PipelineParts>(sharding::PipelineParts{
        {"transformer.wte", "transformer.wpe"}, "transformer.h", {"transformer.ln_f", "lm_head"}}));
    attach(std::make_shared<sharding::TensorPlan>(
        sharding::TensorPlan{.colwise = {layer + "attn.c_attn", layer + "mlp.c_fc"},
                             .rowwise = {layer + "attn.c_proj", layer + "mlp.c_proj"},
                             .joined = {{layer + "attn.c_attn", 3}},
                             .embedding = "transformer.wte",
                             .output = "lm_head"}));
  }
  std::string_view type_name() const override { return "GPT2LMHeadModel"; }

 protected:
  Value forward(const Args& args) override {
    if (args.find("logits_to_keep").is_none()) {
      const Tensor hidden = transformer_.call(args);
      return nn::is_absent(*lm_head_) ? Value(hidden) : logits_or_loss(*lm_head_, args, hidden);
    }
    const KeptLogits kept(args, args.tensor(0).shape(), config_);
    return lm_head_(kept.of(transformer_.call(args)));
  }

 private:
  const DecoderConfig config_;
  Gpt2Model& transformer_;
  nn::Child<nn::Module> lm_head_;
};

}  // namespace

std::shared_ptr<nn::Module> make_gpt2(const DecoderConfig& config) { return std::make_shared<Gpt2LMHeadModel>(config); }

}  // namespace loom::models
