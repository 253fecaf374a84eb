#include "models/decoder/latent_attention.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/nn/functional.h"
#include "engine/nn/layers.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/general.h"
#include "models/decoder/decoder_parts.h"
#include "models/decoder/named_module.h"

namespace loom::models {
namespace {

using nn::Args;
using nn::Value;

constexpr double kLatentNormEps = 1e-6;  // whatever rms_norm_eps says, as in transformers

std::shared_ptr<nn::Linear> latent_projection(const DecoderConfig& c, std::int64_t in, std::int64_t out, bool bias) {
  return std::make_shared<nn::Linear>(in, out, bias, c.initializer_range);
}

// [B,S,heads,D]: dim 2 i to i, 2 i + 1 to D / 2 + i.
Tensor pairs_apart(const Tensor& x) {
  const Shape& s = x.shape();
  const Tensor pairs = ops::reshape(x, {s[0], s[1], s[2], s[3] / 2, 2});
  return ops::reshape(ops::transpose(pairs, 3, 4), s);
}

// Zeros behind the last dim.
Tensor padded_to(const Tensor& x, std::int64_t size) {
  const Shape& s = x.shape();
  if (s[3] == size) return x;
  return ops::concat({x, Tensor::zeros({s[0], s[1], s[2], size - s[3]}, x.dtype())}, 3);
}

class LatentAttention final : public NamedModule {
 public:
  explicit LatentAttention(const DecoderConfig& c)
      : NamedModule(class_name(c, "Attention")),
        config_(*c.latent_attention),
        heads_(c.num_attention_heads),
        head_dim_(c.head_dim),
        scale_(attention_scale(c)) {
    const std::int64_t queries = heads_ * head_dim_;
    if (config_.q_lora_rank == 0) {
      q_ = register_module("q_proj", latent_projection(c, c.hidden_size, queries, false));
    } else {
      q_a_ = register_module("q_a_proj", latent_projection(c, c.hidden_size, config_.q_lora_rank, c.qkv_bias));
      q_a_norm_ = register_module("q_a_layernorm", std::make_shared<nn::RMSNorm>(config_.q_lora_rank, kLatentNormEps));
      q_ = register_module("q_b_proj", latent_projection(c, config_.q_lora_rank, queries, false));
    }
    const std::int64_t rank = config_.kv_lora_rank;
    kv_a_ = register_module("kv_a_proj_with_mqa",
                            latent_projection(c, c.hidden_size, rank + config_.qk_rope_head_dim, c.qkv_bias));
    kv_a_norm_ = register_module("kv_a_layernorm", std::make_shared<nn::RMSNorm>(rank, kLatentNormEps));
    kv_b_ = register_module(
        "kv_b_proj", latent_projection(c, rank, heads_ * (config_.qk_nope_head_dim + config_.v_head_dim), false));
    o_ = register_module("o_proj",
                         latent_projection(c, heads_ * config_.v_head_dim, c.hidden_size, c.attention_output_bias));
    attach_batch_rows(*this);
    attach_context(*this, heads_, heads_, shared_head_dim());
  }

 protected:
  Value forward(const Args& args) override {
    const Tensor out = attend(*this, queries_keys_values(args), scale_, args);
    const std::int64_t padding = out.shape()[3] - config_.v_head_dim;
    return o_(join_heads(padding == 0 ? out : ops::split_last(out, {config_.v_head_dim, padding})[0]));
  }

 private:
  // Of queries, keys and values, padded to one size.
  std::int64_t shared_head_dim() const { return std::max(head_dim_, config_.v_head_dim); }

  std::vector<Tensor> queries_keys_values(const Args& args) const {
    const Tensor &hidden = args.tensor(0), &cos = args.tensor(1), &sin = args.tensor(2);
    const std::int64_t n = config_.qk_nope_head_dim, r = config_.qk_rope_head_dim;
    const Tensor projected = queries(hidden);
    const std::int64_t heads = projected.shape()[-1] / head_dim_;  // this rank's
    const std::vector<Tensor> q = ops::split_last(split_heads(projected, heads), {n, r});
    const std::vector<Tensor> latent = ops::split_last(kv_a_(hidden), {config_.kv_lora_rank, r});
    const std::vector<Tensor> kv =
        ops::split_last(split_heads(kv_b_(kv_a_norm_(latent[0])), heads), {n, config_.v_head_dim});
    const Tensor shared_key = rotated(split_heads(latent[1], 1), cos, sin);
    const std::vector<Tensor> shared_keys(static_cast<std::size_t>(heads), shared_key);
    const std::int64_t size = shared_head_dim();
    return {padded_to(ops::concat({q[0], rotated(q[1], cos, sin)}, 3), size),
            padded_to(ops::concat({kv[0], ops::concat(shared_keys, 2)}, 3), size), padded_to(kv[1], size)};
  }

  Tensor queries(const Tensor& hidden) const { return q_a_ ? q_(q_a_norm_(q_a_(hidden))) : q_(hidden); }

  Tensor rotated(const Tensor& x, const Tensor& cos, const Tensor& sin) const {
    return nn::functional::rope(config_.rope_interleave ? pairs_apart(x) : x, cos, sin);
  }

  const LatentAttentionConfig config_;
  const std::int64_t heads_;
  const std::int64_t head_dim_;
  const double scale_;
  nn::Child<nn::Module> q_a_;
  nn::Child<nn::Module> q_a_norm_;
  nn::Child<nn::Module> q_;
  nn::Child<nn::Module> kv_a_;
  nn::Child<nn::Module> kv_a_norm_;
  nn::Child<nn::Module> kv_b_;
  nn::Child<nn::Module> o_;
};

}  // namespace

std::shared_ptr<nn::Module> make_latent_attention(const DecoderConfig& config) {
  require(config.latent_attention.has_value(), "make_latent_attention: the config has none");
  return std::make_shared<LatentAttention>(config);
}

}  // namespace loom::models
