#include "models/internvl/internvl.h"

#include "engine/core/error.h"
#include "engine/nn/functional.h"
#include "engine/nn/layers.h"
#include "engine/nn/path_aliases.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/vision.h"
#include "models/decoder/cache_call.h"
#include "models/decoder/decoder_parts.h"
#include "models/decoder/rotary_decoder.h"
#include "models/hub/model_hub.h"
#include "models/internvl/internvl_vision.h"

namespace loom::models {
namespace {

using nn::Args;
using nn::Value;

// MindSpeed-MM's names, then the names of transformers 4 and of InternVL's first release.
const std::vector<nn::PathAlias>& aliases() {
  static const std::vector<nn::PathAlias> kAliases{
      {"text_decoder", "model.language_model"},
      {"text_decoder.embedding", "model.language_model.embed_tokens"},
      {"text_decoder.rotary_pos_emb", "model.language_model.rotary_emb"},
      {"text_decoder.decoder", "model.language_model"},
      {"text_decoder.decoder.final_layernorm", "model.language_model.norm"},
      {"text_decoder.output_layer", "lm_head"},
      {"image_encoder", "model.vision_tower"},
      {"vision_tower", "model.vision_tower"},
      {"vision_model", "model.vision_tower"},
      {"vision_model.encoder.layers", "model.vision_tower.encoder.layer"},
      {"multi_modal_projector", "model.multi_modal_projector"},
      {"language_model", "model.language_model"},
      {"language_model.model", "model.language_model"},
      {"language_model.lm_head", "lm_head"},
  };
  return kAliases;
}

// LayerNorm, two linear layers with GELU between: D * factor^2 features of the tower to the decoder's hidden_size.
class Projector final : public NamedModule {
 public:
  explicit Projector(const InternVLConfig& c)
      : Projector(c, c.vision.hidden_size * c.downsample_factor * c.downsample_factor) {}

 protected:
  Value forward(const Args& args) override {
    const Tensor features = ops::cast(args.tensor(0), layer_norm_.weight.value.dtype());
    const Tensor hidden = linear_1_(layer_norm_(features));
    return linear_2_(nn::functional::gelu(hidden, ops::Gelu::kErf));
  }

 private:
  static constexpr double kEps = 1e-5;  // torch.nn.LayerNorm's own

  Projector(const InternVLConfig& c, std::int64_t in)
      : NamedModule("InternVLMultiModalProjector"),
        layer_norm_(register_module("layer_norm", std::make_shared<nn::LayerNorm>(in, kEps))),
        linear_1_(register_module(
            "linear_1", std::make_shared<nn::Linear>(in, c.text.hidden_size, true, c.text.initializer_range))),
        linear_2_(register_module("linear_2", std::make_shared<nn::Linear>(c.text.hidden_size, c.text.hidden_size, true,
                                                                           c.text.initializer_range))) {}

  nn::LayerNorm& layer_norm_;
  nn::Child<nn::Module> linear_1_;
  nn::Child<nn::Module> linear_2_;
};

class Model final : public NamedModule {
 public:
  explicit Model(const InternVLConfig& c)
      : NamedModule("InternVLModel"),
        config_(c),
        vision_tower_(register_module("vision_tower", make_internvl_vision(c.vision))),
        projector_(register_module("multi_modal_projector", std::make_shared<Projector>(c))),
        language_model_(register_module("language_model", std::make_shared<DecoderModel>(c.text))) {}

  const nn::ParamSlot& embedding() const { return language_model_.embed_tokens->weight; }

 protected:
  Value forward(const Args& args) override {
    const Tensor& input_ids = args.tensor(0);
    Tensor embeddings = language_model_.embed_tokens(input_ids);
    if (args.positional.size() > 1) {
      const Tensor features = ops::cast(image_features(args.tensor(1)), embeddings.dtype());
      embeddings = ops::masked_scatter(embeddings, input_ids, config_.image_token_id, features);
    } else {
      check_is_text(input_ids);
    }
    nn::ValueDict named = args.named;
    named.emplace_back("inputs_embeds", embeddings);
    return language_model_.call({{}, std::move(named)});
  }

 private:
  // [N,C,H,W] -> [N, tokens of an image, the decoder's hidden_size].
  Tensor image_features(const Tensor& pixel_values) {
    const Shape pixels = pixel_values.shape();
    check_sides(pixels);
    Tensor features = vision_tower_(pixel_values);
    const std::int64_t rows = pixels[2] / config_.vision.patch_size, columns = pixels[3] / config_.vision.patch_size;
    features = ops::slice_sequence(features, 1, rows * columns);  // without the class token
    features = ops::reshape(features, {pixels[0], rows, columns, config_.vision.hidden_size});
    features = ops::pixel_shuffle(features, config_.downsample_factor);
    const Shape& s = features.shape();
    return projector_(ops::reshape(features, {s[0], s[1] * s[2], s[3]}));
  }

  void check_sides(const Shape& pixels) const {
    const auto fits = [&](std::int64_t side) { return side > 0 && side % config_.image_unit() == 0; };
    if (pixels.ndim() == 4 && fits(pixels[2]) && fits(pixels[3])) return;
    config_error(
        "pixel_values {}, but the model takes [images, {}, height, width] with sides that are multiples of {}, as {} x "
        "{} patches of {} pixels become a token; resize the images",
        to_string(pixels), config_.vision.num_channels, config_.image_unit(), config_.downsample_factor,
        config_.downsample_factor, config_.vision.patch_size);
  }

  void check_is_text(const Tensor& input_ids) const {
    const std::int64_t tokens = ops::count_ids(input_ids, config_.image_token_id);
    if (tokens == 0) return;
    config_error(
        "input_ids hold {} tokens with id {} (image_token_id), but no pixel_values were given; each image of {} x {} "
        "pixels takes {}",
        tokens, config_.image_token_id, config_.image_size(), config_.image_size(), config_.image_tokens());
  }

  const InternVLConfig config_;
  nn::Child<nn::Module> vision_tower_;
  nn::Child<nn::Module> projector_;
  DecoderModel& language_model_;
};

class ForConditionalGeneration final : public InternVL {
 public:
  explicit ForConditionalGeneration(const InternVLConfig& c)
      : InternVL("InternVLForConditionalGeneration"),
        config_(c),
        model_(register_module("model", std::make_shared<Model>(c))),
        lm_head_(register_module("lm_head", make_lm_head(c.text, model_.embedding()))) {
    register_tower({"vision_tower", {"model.vision_tower"}});
    register_tower({"multi_modal_projector", {"model.multi_modal_projector"}});
    register_tower({"language_model", {"model.language_model", "lm_head"}});
    nn::declare_path_aliases(*this, aliases());
    if (c.vision.freeze) freeze_tower("vision_tower");
    if (c.freeze_text) freeze_tower("language_model");
  }
  std::string config_json() const override { return to_json(config_); }

 protected:
  Value forward_cached(const Args& args) override {
    Args inner{args.positional, {}};
    for (const auto& [name, value] : args.named) {
      if (name == "pixel_values") {
        inner.positional.push_back(value);
      } else if (name == kPastKeyValues || name == "attention_mask" || name == "position_ids") {
        inner.named.emplace_back(name, value);
      } else if (name != "logits_to_keep") {
        config_error("{} was called with {} and past_key_values; it takes no {} then", type_name(), name, name);
      }
    }
    const KeptLogits kept(args, args.tensor(0).shape(), config_.text);
    return lm_head_(kept.of(model_.call(std::move(inner))));
  }

  // Padding is behind a row's tokens, which do not see it.
  std::vector<std::string_view> input_names() const override { return {"pixel_values", "attention_mask"}; }

  Value forward_multimodal(const Tensor& input_ids, const Tensor* pixel_values) override {
    if (pixel_values == nullptr) return lm_head_(model_(input_ids));
    return lm_head_(model_(input_ids, *pixel_values));
  }

 private:
  const InternVLConfig config_;
  Model& model_;
  nn::Child<nn::Module> lm_head_;
};

}  // namespace

std::shared_ptr<InternVL> build_internvl(const InternVLConfig& config) {
  return std::make_shared<ForConditionalGeneration>(config);
}

void register_internvl(ModelHub& hub) {
  hub.add(
      {"InternVLForConditionalGeneration", "internvl", "InternVLChatModel", "internvl_chat"},
      [](const ConfigReader& config) { return build_internvl(read_internvl_config(config)); },
      [](const ConfigReader& config) {
        const InternVLConfig read = read_internvl_config(config);
        return ModelFacts{read.text.vocab_size, longest_sequence(read.text), to_json(read)};
      });
}

}  // namespace loom::models
