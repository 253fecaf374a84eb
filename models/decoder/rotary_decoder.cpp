#include "models/decoder/rotary_decoder.h"

#include "engine/core/error.h"
#include "engine/dist/context_attention.h"
#include "engine/nn/absent.h"
#include "engine/nn/functional.h"
#include "engine/nn/router_loss.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/decoding.h"
#include "models/decoder/cache_call.h"
#include "models/decoder/decoder_parts.h"
#include "models/decoder/expert_slot.h"
#include "models/decoder/latent_attention.h"
#include "models/decoder/layer_parts.h"
#include "models/decoder/moe.h"
#include "models/decoder/rotary_embedding.h"

namespace loom::models {
namespace {

using nn::Args;
using nn::Value;

std::shared_ptr<nn::Linear> projection(const DecoderConfig& config, std::int64_t in, std::int64_t out, bool bias) {
  return std::make_shared<nn::Linear>(in, out, bias, config.initializer_range);
}

std::shared_ptr<nn::RMSNorm> norm(const DecoderConfig& config) {
  return std::make_shared<nn::RMSNorm>(config.hidden_size, config.norm_eps);
}

class Attention final : public NamedModule {
 public:
  explicit Attention(const DecoderConfig& c)
      : NamedModule(class_name(c, "Attention")),
        heads_(c.num_attention_heads),
        kv_heads_(c.num_key_value_heads),
        head_dim_(c.head_dim),
        scale_(attention_scale(c)),
        q_proj_(register_module("q_proj", projection(c, c.hidden_size, heads_ * c.head_dim, c.qkv_bias))),
        k_proj_(register_module("k_proj", projection(c, c.hidden_size, kv_heads_ * c.head_dim, c.qkv_bias))),
        v_proj_(register_module("v_proj", projection(c, c.hidden_size, kv_heads_ * c.head_dim, c.qkv_bias))),
        o_proj_(register_module("o_proj", projection(c, heads_ * c.head_dim, c.hidden_size, c.attention_output_bias))) {
    attach_batch_rows(*this);
    attach_context(*this, heads_, kv_heads_, c.head_dim);
    if (!c.qk_norm) return;
    q_norm_ = register_module("q_norm", std::make_shared<nn::RMSNorm>(c.head_dim, c.norm_eps));
    k_norm_ = register_module("k_norm", std::make_shared<nn::RMSNorm>(c.head_dim, c.norm_eps));
  }

 protected:
  Value forward(const Args& args) override {
    const Tensor &hidden = args.tensor(0), &cos = args.tensor(1), &sin = args.tensor(2);
    Tensor q = heads_of(q_proj_, q_norm_, hidden);
    Tensor k = heads_of(k_proj_, k_norm_, hidden);
    const Tensor v = heads_of(v_proj_, {}, hidden);
    q = nn::functional::rope(q, cos, sin);
    k = nn::functional::rope(k, cos, sin);
    return o_proj_(join_heads(attend(*this, {std::move(q), std::move(k), v}, scale_, args)));
  }

 private:
  // This rank's heads.
  Tensor heads_of(const nn::Child<nn::Module>& projection, const nn::Child<nn::Module>& norm,
                  const Tensor& hidden) const {
    const Tensor projected = projection(hidden);
    const Tensor x = split_heads(projected, projected.shape()[-1] / head_dim_);
    return norm ? norm(x).tensor() : x;
  }

  const std::int64_t heads_;
  const std::int64_t kv_heads_;
  const std::int64_t head_dim_;
  const double scale_;
  nn::Child<nn::Module> q_proj_;
  nn::Child<nn::Module> k_proj_;
  nn::Child<nn::Module> v_proj_;
  nn::Child<nn::Module> o_proj_;
  nn::Child<nn::Module> q_norm_;  // over each head's dims
  nn::Child<nn::Module> k_norm_;
};

class Mlp final : public NamedModule {
 public:
  Mlp(const DecoderConfig& c, std::int64_t size)
      : NamedModule(class_name(c, "MLP")),
        gate_proj_(register_module("gate_proj", projection(c, c.hidden_size, size, c.mlp_bias))),
        up_proj_(register_module("up_proj", projection(c, c.hidden_size, size, c.mlp_bias))),
        down_proj_(register_module("down_proj", projection(c, size, c.hidden_size, c.mlp_bias))) {}

 protected:
  Value forward(const Args& args) override {
    const Tensor& hidden = args.tensor(0);
    const Tensor gate = gate_proj_(hidden);
    const Tensor up = up_proj_(hidden);
    return activated(
        *this, {gate, up}, [](const auto& x) { return nn::functional::swiglu(x[0], x[1]); },
        [this](const Tensor& x) { return down_proj_(x).tensor(); });
  }

 private:
  nn::Child<nn::Module> gate_proj_;
  nn::Child<nn::Module> up_proj_;
  nn::Child<nn::Module> down_proj_;
};

std::shared_ptr<nn::Module> make_attention(const DecoderConfig& config) {
  if (config.latent_attention) return make_latent_attention(config);
  return std::make_shared<Attention>(config);
}

std::shared_ptr<nn::Module> make_mlp(const DecoderConfig& config, std::int64_t layer) {
  if (is_sparse_layer(config, layer)) return make_moe_block(config);
  return make_gated_mlp(config, config.intermediate_size);
}

class DecoderLayer final : public NamedModule {
 public:
  DecoderLayer(const DecoderConfig& c, std::int64_t index)
      : NamedModule(class_name(c, "DecoderLayer")),
        self_attn_(register_module("self_attn", make_attention(c))),
        mlp_(register_module("mlp", make_mlp(c, index))),
        input_layernorm_(register_module("input_layernorm", norm(c))),
        post_attention_layernorm_(register_module("post_attention_layernorm", norm(c))) {
    attach_batch_rows(*this);
  }

 protected:
  Value forward(const Args& args) override {
    Tensor residual = args.tensor(0);
    Tensor hidden = normed(*this, input_layernorm_, residual, [&](const Tensor& x) {
      return run_layer(*self_attn_, LayerOptions::of(args, 3), x, args.tensor(1), args.tensor(2));
    });
    hidden = ops::add(residual, hidden);
    residual = hidden;
    LayerResult mlp;
    hidden = normed(*this, post_attention_layernorm_, hidden, [&](const Tensor& x) {
      mlp = LayerResult::of(mlp_(x));
      return std::move(mlp.hidden);
    });
    mlp.hidden = ops::add(residual, hidden);
    return mlp.value();
  }

 private:
  nn::Child<nn::Module> self_attn_;
  nn::Child<nn::Module> mlp_;
  nn::Child<nn::Module> input_layernorm_;
  nn::Child<nn::Module> post_attention_layernorm_;
};

Tensor attend_whole(const Tensor& q, const Tensor& k, const Tensor& v, double scale, const ops::SegmentEnds& ends) {
  return ends ? nn::functional::segment_attention(q, k, v, scale, ends) : nn::functional::attention(q, k, v, scale);
}

Shape input_shape(const Args& args) {
  const Value& given = args.find("inputs_embeds");
  return given.is_none() ? args.tensor(0).shape() : given.tensor().shape();
}

}  // namespace

Tensor attend(const nn::Module& attention, const std::vector<Tensor>& qkv, double scale, const Args& args) {
  if (const auto cache = cache_part(optional_argument(args, 4)))
    return ops::cached_attention(qkv[0], qkv[1], qkv[2], scale, *cache);
  const auto slot = attention.attachment<dist::ContextSlot>();
  return core_attention(attention, qkv,
                        [scale, slot, ends = segment_ends(optional_argument(args, 3))](const auto& parts) {
                          if (slot == nullptr || !slot->context)
                            return attend_whole(parts[0], parts[1], parts[2], scale, ends);
                          return dist::context_attention(parts[0], parts[1], parts[2], scale, ends, *slot->context,
                                                         attend_whole, slot->path);
                        });
}

std::shared_ptr<nn::Module> make_gated_mlp(const DecoderConfig& config, std::int64_t intermediate_size) {
  return std::make_shared<Mlp>(config, intermediate_size);
}

DecoderModel::DecoderModel(const DecoderConfig& c)
    : NamedModule(class_name(c, "Model")),
      embed_tokens(register_module("embed_tokens",
                                   std::make_shared<nn::Embedding>(c.vocab_size, c.hidden_size, c.initializer_range))),
      config_(c),
      layers_(register_module("layers", std::make_shared<nn::ModuleList>())),
      norm_(register_module("norm", norm(c))),
      rotary_emb_(register_module("rotary_emb",
                                  std::make_shared<RotaryEmbedding>(class_name(c, "RotaryEmbedding"), rotary_of(c)))) {
  if (c.pad_token_id && *c.pad_token_id < c.vocab_size) embed_tokens->set_padding(*c.pad_token_id);
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i) layers_.append(std::make_shared<DecoderLayer>(c, i));
  layers_.attach(std::make_shared<LayerList>(LayerList{"self_attn", "mlp"}));
  attach_batch_rows(*this);
  attach_context(*this);
  attach_tensor(*this);
  if (c.moe) attach(std::make_shared<ExpertSlot>());
}

bool DecoderModel::adds_losses() const { return training() && attachment<ExpertSlot>()->options.has_losses(); }

Tensor DecoderModel::embeddings(const Args& args) {
  const Value& given = args.find("inputs_embeds");
  if (given.is_none() == args.positional.empty()) {
    config_error("{} was called with {}; give either input_ids or inputs_embeds", type_name(),
                 given.is_none() ? "neither" : "both");
  }
  if (given.is_none()) {
    check_length(args.tensor(0).shape(), 2, config_);
    return embed_tokens(args.tensor(0));
  }
  const Shape& shape = given.tensor().shape();
  check_length(shape, 3, config_);
  check_model(shape[2] == config_.hidden_size,
              "inputs_embeds {}, but hidden_size is {}; give [batch, sequence, hidden_size]", to_string(shape),
              config_.hidden_size);
  return given.tensor();
}

// With a cache positions go beyond the tokens of the call.
Value DecoderModel::rotary_tables(const Args& args, const Tensor& hidden, const std::optional<CacheCall>& cache) {
  if (cache) return rotary_emb_(hidden, cache->position_ids(), longest_sequence(config_));
  const Value& position_ids = args.find("position_ids");
  const bool by_axes = !position_ids.is_none() && position_ids.tensor().shape().ndim() == 3;
  const std::int64_t tokens = attachment<dist::TensorSlot>()->whole_length(hidden.shape()[1]);
  const Tensor whole = tokens == hidden.shape()[1] ? hidden : Tensor::meta({hidden.shape()[0], tokens}, hidden.dtype());
  if (const auto& context = attachment<dist::ContextSlot>()->context) {
    const std::int64_t length = tokens * context->degrees().ranks();
    return rotary_emb_(whole, position_ids.tensor(), length, length);
  }
  if (by_axes) return rotary_emb_(whole, position_ids, longest_sequence(config_));
  return position_ids.is_none() ? rotary_emb_(whole) : rotary_emb_(whole, position_ids);
}

// What a vision tower adds to the results of the first layers.
Value DecoderModel::with_deepstack(std::size_t layer, const Value& deepstack, Value result) {
  if (deepstack.is_none() || layer >= deepstack.list().size()) return result;
  LayerResult added = LayerResult::of(result);
  added.hidden = ops::add(added.hidden, deepstack.list()[layer]);
  return added.value();
}

Value DecoderModel::run_plain(std::size_t layer, const Args& args, const Tensor& hidden) {
  if (nn::is_absent(layers_[layer])) return hidden;
  Value result = result_of_layer(layers_[layer], {args.positional[3], {}}, hidden, args.tensor(1), args.tensor(2));
  return with_deepstack(layer, args.positional[4], std::move(result));
}

// What the routers of the layers say goes along with the hidden states.
Value DecoderModel::run_balanced(std::size_t layer, const Args& args) {
  const LayerResult before = LayerResult::of(args.positional[0]);
  return with_losses_of(config_, before, LayerResult::of(run_plain(layer, args, before.hidden))).value();
}

Value DecoderModel::with_router_losses(const Args& args, const LayerResult& result) {
  const Value& wanted = args.find("router_loss");
  if (wanted.is_none() || !wanted.flag() || !result.loads.defined()) return norm_(result.hidden);
  std::vector<Tensor> all{norm_(result.hidden)};
  const auto& context = attachment<dist::ContextSlot>()->context;
  const dist::TensorSlot& tensor = *attachment<dist::TensorSlot>();
  for (Tensor& loss : router_losses(config_, attachment<ExpertSlot>()->options, result, {context.get(), tensor})) {
    all.push_back(std::move(loss));
  }
  return all;
}

Value DecoderModel::forward(const Args& args) {
  Tensor hidden = embeddings(args);
  const auto cache = CacheCall::of(args, hidden.shape(), config_);
  const Value tables = rotary_tables(args, hidden, cache);
  const Tensor &cos = tables.list()[0], &sin = tables.list()[1];
  const Value &ends = args.find("actual_seq_len"), &deepstack = args.find("deepstack");
  if (!cache) {
    const bool balanced = config_.moe && (config_.moe->has_router_loss() || adds_losses());
    Value result = run_layers(layers_, {{std::move(hidden), cos, sin, ends, deepstack}, {}},
                              [this, balanced](std::size_t i, const Args& args) {
                                return balanced ? run_balanced(i, args) : run_plain(i, args, args.tensor(0));
                              });
    if (nn::is_absent(*norm_)) return result;
    return balanced ? with_router_losses(args, LayerResult::of(result)) : norm_(result);
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Value result = result_of_layer(layers_[i], {ends, cache->layer(i)}, hidden, cos, sin);
    hidden = LayerResult::of(with_deepstack(i, deepstack, std::move(result))).hidden;
  }
  cache->finish();
  return norm_(hidden);
}

DecoderForCausalLM::DecoderForCausalLM(const DecoderConfig& c)
    : NamedModule(class_name(c, "ForCausalLM")),
      config_(c),
      model(register_module("model", std::make_shared<DecoderModel>(c))),
      lm_head(register_module("lm_head", make_lm_head(c, model.embed_tokens->weight))) {
  attach_context(*this);
  attach_tensor_plan(*this, c);
  if (!c.moe) return;
  attach(std::make_shared<ExpertSlot>());
  if (!c.moe->has_router_loss()) return;
  attach(std::make_shared<nn::RouterLoss>(nn::RouterLoss{{{"router_aux_loss", c.moe->router_aux_loss_coef}}}));
}

Value DecoderForCausalLM::forward(const Args& args) {
  if (args.find("logits_to_keep").is_none()) {
    const Value body = model.call(args);
    if (nn::is_absent(*lm_head)) return body;  // of a stage
    if (body.is_tensor()) return logits_or_loss(*lm_head, args, body.tensor());
    nn::ValueList result = body.list();
    result[0] = logits_or_loss(*lm_head, args, result[0].tensor());
    return result;
  }
  const KeptLogits kept(args, input_shape(args), config_);
  return lm_head(kept.of(model.call(args)));
}

std::shared_ptr<nn::Module> make_rotary_decoder(const DecoderConfig& config) {
  return std::make_shared<DecoderForCausalLM>(config);
}

}  // namespace loom::models
