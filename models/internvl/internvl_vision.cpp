#include "models/internvl/internvl_vision.h"

#include <cmath>

#include "engine/core/error.h"
#include "engine/nn/functional.h"
#include "engine/nn/layers.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/composed.h"
#include "engine/tensor/ops/vision.h"
#include "models/decoder/decoder_parts.h"
#include "models/decoder/named_module.h"

namespace loom::models {
namespace {

using nn::Args;
using nn::Init;
using nn::Value;
using Config = InternVLVisionConfig;

std::shared_ptr<nn::Linear> linear(const Config& c, std::int64_t in, std::int64_t out, bool bias = true) {
  return std::make_shared<nn::Linear>(in, out, bias, c.initializer_range);
}

std::shared_ptr<nn::Module> norm(const Config& c) {
  if (c.rms_norm) return std::make_shared<nn::RMSNorm>(c.hidden_size, c.layer_norm_eps);
  return std::make_shared<nn::LayerNorm>(c.hidden_size, c.layer_norm_eps);
}

// A convolution whose kernel is its stride; weight [out, C, P, P]. [N,C,H,W] -> [N, patches, out].
class PatchConvolution final : public nn::Module {
 public:
  explicit PatchConvolution(const Config& c)
      : patch_(c.patch_size),
        weight_(register_parameter("weight", {c.hidden_size, c.num_channels, c.patch_size, c.patch_size},
                                   Init::normal(c.initializer_range))),
        bias_(register_parameter("bias", {c.hidden_size}, Init::zeros())) {}
  std::string_view type_name() const override { return "Conv2d"; }

 protected:
  Value forward(const Args& args) override {
    const Shape& s = weight_.value.shape();
    const Tensor patches = ops::unfold_patches(ops::cast(args.tensor(0), weight_.value.dtype()), patch_, patch_);
    return ops::linear(patches, ops::reshape(weight_.value, {s[0], s[1] * s[2] * s[3]}), bias_.value);
  }

 private:
  const std::int64_t patch_;
  nn::ParamSlot& weight_;
  nn::ParamSlot& bias_;
};

class PatchEmbeddings final : public NamedModule {
 public:
  explicit PatchEmbeddings(const Config& c)
      : NamedModule("InternVLVisionPatchEmbeddings"),
        config_(c),
        projection_(register_module("projection", std::make_shared<PatchConvolution>(c))) {}

 protected:
  Value forward(const Args& args) override {
    const Shape& s = args.tensor(0).shape();
    const auto in_patches = [&](std::int64_t side) { return side > 0 && side % config_.patch_size == 0; };
    if (s.ndim() != 4 || s[1] != config_.num_channels || !in_patches(s[2]) || !in_patches(s[3])) {
      config_error(
          "pixel_values {}, but the vision tower takes [images, {}, height, width] in whole patches of {} x {}; resize "
          "the images",
          to_string(s), config_.num_channels, config_.patch_size, config_.patch_size);
    }
    return projection_(args.tensor(0));
  }

 private:
  const Config config_;
  nn::Child<nn::Module> projection_;
};

class Embeddings final : public NamedModule {
 public:
  explicit Embeddings(const Config& c)
      : NamedModule("InternVLVisionEmbeddings"),
        patch_size_(c.patch_size),
        grid_(c.grid()),
        cls_token_(register_parameter("cls_token", {1, 1, c.hidden_size}, Init::zeros())),
        patch_embeddings_(register_module("patch_embeddings", std::make_shared<PatchEmbeddings>(c))) {
    if (!c.use_absolute_position_embeddings) return;
    position_embeddings_ =
        &register_parameter("position_embeddings", {1, c.grid() * c.grid() + 1, c.hidden_size}, Init::zeros());
  }

 protected:
  Value forward(const Args& args) override {
    const Shape pixels = args.tensor(0).shape();
    const Tensor patches = patch_embeddings_(args.tensor(0));
    const Tensor hidden = ops::prepend_token(cls_token_.value, patches);
    if (position_embeddings_ == nullptr) return hidden;
    return ops::add(hidden, positions(pixels[2] / patch_size_, pixels[3] / patch_size_));
  }

 private:
  // [1 + height * width, D]: of the class token and of the patches, interpolated for another grid than the table's.
  Tensor positions(std::int64_t height, std::int64_t width) const {
    const Tensor& table = position_embeddings_->value;
    const std::int64_t dim = table.shape()[2];
    if (height == grid_ && width == grid_) return ops::reshape(table, {1 + grid_ * grid_, dim});
    const Tensor of_patches = ops::slice_sequence(table, 1, grid_ * grid_);
    const Tensor resized = ops::resize_bicubic(ops::reshape(of_patches, {grid_, grid_, dim}), height, width);
    const Tensor of_class = ops::slice_sequence(table, 0, 1);
    const Tensor joined = ops::prepend_token(of_class, ops::reshape(resized, {1, height * width, dim}));
    return ops::reshape(joined, {1 + height * width, dim});
  }

  const std::int64_t patch_size_;
  const std::int64_t grid_;  // patches of a side in the table
  nn::ParamSlot& cls_token_;
  nn::Child<nn::Module> patch_embeddings_;
  nn::ParamSlot* position_embeddings_ = nullptr;
};

class Attention final : public NamedModule {
 public:
  explicit Attention(const Config& c)
      : NamedModule("InternVLVisionAttention"),
        heads_(c.num_attention_heads),
        scale_(1.0 / std::sqrt(static_cast<double>(c.hidden_size / c.num_attention_heads))),
        q_proj_(register_module("q_proj", linear(c, c.hidden_size, c.hidden_size, c.attention_bias))),
        k_proj_(register_module("k_proj", linear(c, c.hidden_size, c.hidden_size, c.attention_bias))),
        v_proj_(register_module("v_proj", linear(c, c.hidden_size, c.hidden_size, c.attention_bias))),
        projection_layer_(register_module("projection_layer", linear(c, c.hidden_size, c.hidden_size))) {
    constexpr double kQkNormEps = 1e-6;  // transformers does not take it from the config
    if (!c.use_qk_norm) return;
    q_norm_ = register_module("q_norm", std::make_shared<nn::RMSNorm>(c.hidden_size, kQkNormEps));
    k_norm_ = register_module("k_norm", std::make_shared<nn::RMSNorm>(c.hidden_size, kQkNormEps));
  }

 protected:
  Value forward(const Args& args) override {
    const Tensor& hidden = args.tensor(0);
    Tensor q = q_proj_(hidden);
    Tensor k = k_proj_(hidden);
    const Tensor v = v_proj_(hidden);
    if (q_norm_) {  // over all heads at once
      q = q_norm_(q).tensor();
      k = k_norm_(k).tensor();
    }
    return projection_layer_(join_heads(nn::functional::plain_attention(
        split_heads(q, heads_), split_heads(k, heads_), split_heads(v, heads_), scale_, /*causal=*/false)));
  }

 private:
  const std::int64_t heads_;
  const double scale_;
  nn::Child<nn::Module> q_proj_;
  nn::Child<nn::Module> k_proj_;
  nn::Child<nn::Module> v_proj_;
  nn::Child<nn::Module> projection_layer_;
  nn::Child<nn::Module> q_norm_;
  nn::Child<nn::Module> k_norm_;
};

class Mlp final : public NamedModule {
 public:
  explicit Mlp(const Config& c)
      : NamedModule("InternVLVisionMLP"),
        fc1_(register_module("fc1", linear(c, c.hidden_size, c.intermediate_size))),
        fc2_(register_module("fc2", linear(c, c.intermediate_size, c.hidden_size))) {}

 protected:
  Value forward(const Args& args) override { return fc2_(nn::functional::gelu(fc1_(args.tensor(0)), ops::Gelu::kErf)); }

 private:
  nn::Child<nn::Module> fc1_;
  nn::Child<nn::Module> fc2_;
};

class Layer final : public NamedModule {
 public:
  explicit Layer(const Config& c)
      : NamedModule("InternVLVisionLayer"),
        lambda_1_(register_parameter("lambda_1", {c.hidden_size}, Init::constant(c.layer_scale_init_value))),
        lambda_2_(register_parameter("lambda_2", {c.hidden_size}, Init::constant(c.layer_scale_init_value))),
        attention_(register_module("attention", std::make_shared<Attention>(c))),
        mlp_(register_module("mlp", std::make_shared<Mlp>(c))),
        layernorm_before_(register_module("layernorm_before", norm(c))),
        layernorm_after_(register_module("layernorm_after", norm(c))) {}

 protected:
  Value forward(const Args& args) override {
    const Tensor& residual = args.tensor(0);
    Tensor hidden = layernorm_before_(residual);
    hidden = ops::mul(attention_(hidden).tensor(), lambda_1_.value);
    const Tensor attended = ops::add(hidden, residual);
    hidden = layernorm_after_(attended).tensor();
    hidden = ops::mul(mlp_(hidden).tensor(), lambda_2_.value);
    return ops::add(hidden, attended);
  }

 private:
  nn::ParamSlot& lambda_1_;
  nn::ParamSlot& lambda_2_;
  nn::Child<nn::Module> attention_;
  nn::Child<nn::Module> mlp_;
  nn::Child<nn::Module> layernorm_before_;
  nn::Child<nn::Module> layernorm_after_;
};

class Encoder final : public NamedModule {
 public:
  explicit Encoder(const Config& c)
      : NamedModule("InternVLVisionEncoder"), layer_(register_module("layer", std::make_shared<nn::ModuleList>())) {
    for (std::int64_t i = 0; i < c.num_hidden_layers; ++i) layer_.append(std::make_shared<Layer>(c));
  }

 protected:
  Value forward(const Args& args) override {
    Tensor hidden = args.tensor(0);
    for (std::size_t i = 0; i < layer_.size(); ++i) hidden = layer_[i](hidden).tensor();
    return hidden;
  }

 private:
  nn::ModuleList& layer_;
};

class VisionModel final : public NamedModule {
 public:
  explicit VisionModel(const Config& c)
      : NamedModule("InternVLVisionModel"),
        embeddings_(register_module("embeddings", std::make_shared<Embeddings>(c))),
        encoder_(register_module("encoder", std::make_shared<Encoder>(c))) {
    if (c.use_mean_pooling) return;
    layernorm_ = register_module("layernorm", std::make_shared<nn::LayerNorm>(c.hidden_size, c.layer_norm_eps));
  }

 protected:
  Value forward(const Args& args) override {
    const Value hidden = encoder_(embeddings_(args.tensor(0)));
    return layernorm_ ? layernorm_(hidden) : hidden;
  }

 private:
  nn::Child<nn::Module> embeddings_;
  nn::Child<nn::Module> encoder_;
  nn::Child<nn::Module> layernorm_;
};

}  // namespace

std::shared_ptr<nn::Module> make_internvl_vision(const InternVLVisionConfig& config) {
  return std::make_shared<VisionModel>(config);
}

}  // namespace loom::models
