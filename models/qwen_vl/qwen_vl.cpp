#include "models/qwen_vl/qwen_vl.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/nn/layers.h"
#include "engine/nn/path_aliases.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/vision.h"
#include "models/decoder/cache_call.h"
#include "models/decoder/decoder_parts.h"
#include "models/decoder/rotary_decoder.h"
#include "models/hub/model_hub.h"
#include "models/qwen_vl/mrope_positions.h"
#include "models/qwen_vl/qwen_vl_vision.h"

namespace loom::models {
namespace {

using nn::Args;
using nn::Value;

// The names of published weights, then MindSpeed-MM's.
const std::vector<nn::PathAlias>& aliases() {
  static const std::vector<nn::PathAlias> kAliases{
      {"visual", "model.visual"},
      {"model", "model.language_model"},
      {"language_model", "model.language_model"},
      {"image_encoder", "model.visual"},
      {"image_encoder.encoder", "model.visual"},
      {"image_encoder.projector", "model.visual.merger"},
      {"text_decoder", "model.language_model"},
      {"text_decoder.embedding", "model.language_model.embed_tokens"},
      {"text_decoder.rotary_pos_emb", "model.language_model.rotary_emb"},
      {"text_decoder.decoder", "model.language_model"},
      {"text_decoder.decoder.final_layernorm", "model.language_model.norm"},
      {"text_decoder.output_layer", "lm_head"},
  };
  return kAliases;
}

// Pictures or videos: the names of their arguments, and the id of their tokens.
struct Kind {
  const char* pixels;
  const char* grid;
  std::int64_t QwenVlConfig::*token_id;
};
constexpr std::array<Kind, 2> kKinds{{{"pixel_values", "image_grid_thw", &QwenVlConfig::image_token_id},
                                      {"pixel_values_videos", "video_grid_thw", &QwenVlConfig::video_token_id}}};

std::vector<float> seconds_of(const Value& second_per_grid) {
  if (second_per_grid.is_none() || second_per_grid.tensor().raw() == nullptr) return {};
  return second_per_grid.tensor().to_vector<float>();
}

// Pixels and grids come together.
void check_pairs(const Args& args, std::string_view model) {
  for (const Kind& kind : kKinds) {
    const bool pixels = !args.find(kind.pixels).is_none(), grid = !args.find(kind.grid).is_none();
    if (pixels == grid) continue;
    config_error("{} was called with {} and without {}; give both", model, pixels ? kind.pixels : kind.grid,
                 pixels ? kind.grid : kind.pixels);
  }
}

// 0 only behind the tokens of a row.
void check_mask(const Value& mask) {
  if (mask.is_none() || mask.tensor().raw() == nullptr) return;
  const Tensor& given = mask.tensor();
  const std::int64_t length = given.shape()[-1];
  const std::vector<std::int32_t> values = given.to_vector<std::int32_t>();
  for (std::int64_t i = 0; i < given.numel(); ++i) {
    if (i % length == 0 || values[static_cast<std::size_t>(i)] <= values[static_cast<std::size_t>(i) - 1]) continue;
    config_error("attention_mask is 1 behind 0 in row {}; padding goes behind the tokens of a row", i / length);
  }
}

VisionInputs vision_inputs(const Args& args) {
  return {grids_of(args.find("image_grid_thw")), grids_of(args.find("video_grid_thw")),
          seconds_of(args.find("second_per_grid_ts"))};
}

// Call: (input_ids), and named: pictures and videos, and what the language model takes.
class Model final : public NamedModule {
 public:
  explicit Model(const QwenVlConfig& c)
      : NamedModule(std::string(architecture(c.version)).substr(0, architecture(c.version).find("For")) + "Model"),
        config_(c),
        visual_(register_module("visual", make_qwen_vision(c.vision))),
        language_model_(register_module("language_model", std::make_shared<DecoderModel>(c.text))) {}

  const nn::ParamSlot& embedding() const { return language_model_.embed_tokens->weight; }

 protected:
  Value forward(const Args& args) override {
    const Tensor& input_ids = args.tensor(0);
    Tensor embeddings = language_model_.embed_tokens(input_ids);
    std::vector<Tensor> deepstack;
    for (const Kind& kind : kKinds) embeddings = join(kind, args, embeddings, deepstack);
    nn::ValueDict named{{"inputs_embeds", embeddings}};
    if (!deepstack.empty()) named.emplace_back("deepstack", deepstack);
    for (const char* name : {"position_ids", kPastKeyValues, "attention_mask"}) {
      const Value& value = args.find(name);
      if (!value.is_none()) named.emplace_back(name, value);
    }
    return language_model_.call({{}, std::move(named)});
  }

 private:
  // The embeddings with the features of these in their places; in `deepstack`, what is added to the results of the
  // first layers.
  Tensor join(const Kind& kind, const Args& args, const Tensor& embeddings, std::vector<Tensor>& deepstack) {
    const Tensor& input_ids = args.tensor(0);
    const Value &pixels = args.find(kind.pixels), &grid = args.find(kind.grid);
    if (pixels.is_none()) {
      if (!goes_on(args)) check_is_text(kind, input_ids);
      return embeddings;
    }
    const Value features = visual_(pixels, to_value(grids_of(grid)));
    const auto put = [&](const Tensor& into, const Tensor& rows) {
      return ops::masked_scatter(into, input_ids, config_.*kind.token_id, ops::cast(rows, embeddings.dtype()));
    };
    if (features.is_tensor()) return put(embeddings, features.tensor());
    deepstack.resize(features.list().size() - 1);
    for (std::size_t i = 0; i < deepstack.size(); ++i) {
      if (!deepstack[i].defined()) deepstack[i] = Tensor::zeros(embeddings.shape(), embeddings.dtype());
      deepstack[i] = put(deepstack[i], features.list()[i + 1].tensor());
    }
    return put(embeddings, features.list().front().tensor());
  }

  // Whether rows have tokens in the cache: a generated one may have the id of a picture's, and is text.
  static bool goes_on(const Args& args) {
    const Value& cache = args.find(kPastKeyValues);
    if (cache.is_none()) return false;
    const Tensor& lengths = cache["lengths"];
    return std::any_of(lengths.data<std::int64_t>(), lengths.data<std::int64_t>() + lengths.numel(),
                       [](std::int64_t length) { return length > 0; });
  }

  void check_is_text(const Kind& kind, const Tensor& input_ids) const {
    const std::int64_t tokens = ops::count_ids(input_ids, config_.*kind.token_id);
    if (tokens == 0) return;
    config_error("input_ids hold {} tokens with id {}, but no {} were given", tokens, config_.*kind.token_id,
                 kind.pixels);
  }

  const QwenVlConfig config_;
  nn::Child<nn::Module> visual_;
  DecoderModel& language_model_;
};

class ForConditionalGeneration final : public QwenVl {
 public:
  explicit ForConditionalGeneration(const QwenVlConfig& c)
      : QwenVl(std::string(architecture(c.version))),
        config_(c),
        model_(register_module("model", std::make_shared<Model>(c))),
        lm_head_(register_module("lm_head", make_lm_head(c.text, model_.embedding()))) {
    Tower vision{"vision_tower", {"model.visual.patch_embed"}};
    Tower projector{"multi_modal_projector", {"model.visual.merger"}};
    for (std::int64_t i = 0; i < c.vision.depth; ++i) vision.paths.push_back(fmt::format("model.visual.blocks.{}", i));
    if (c.version == QwenVlVersion::k3) {
      vision.paths.emplace_back("model.visual.pos_embed");
      for (std::size_t i = 0; i < c.vision.deepstack_visual_indexes.size(); ++i) {
        projector.paths.push_back(fmt::format("model.visual.deepstack_merger_list.{}", i));
      }
    }
    register_tower(std::move(vision));
    register_tower(std::move(projector));
    register_tower({"language_model", {"model.language_model", "lm_head"}});
    nn::declare_path_aliases(*this, aliases());
    if (c.vision.freeze) freeze_tower("vision_tower");
    if (c.freeze_text) freeze_tower("language_model");
  }
  std::string config_json() const override { return to_json(config_); }

 protected:
  std::vector<std::string_view> input_names() const override {
    return {"pixel_values",       "image_grid_thw", "pixel_values_videos", "video_grid_thw",
            "second_per_grid_ts", "attention_mask", "position_ids"};
  }

  Value forward_multimodal(const Tensor& input_ids, const Tensor* pixel_values) override {
    Args args{{input_ids}, {}};
    if (pixel_values != nullptr) args.named.emplace_back("pixel_values", *pixel_values);
    return forward_inputs(args);
  }

  // Padding is behind a row's tokens, which do not see it: the language model needs no mask.
  Value forward_inputs(const Args& args) override {
    check_pairs(args, type_name());
    check_mask(args.find("attention_mask"));
    Args inner{args.positional, {}};
    for (const auto& [name, value] : args.named) {
      if (name != "attention_mask" && name != "second_per_grid_ts") inner.named.emplace_back(name, value);
    }
    if (args.find("position_ids").is_none()) inner.named.emplace_back("position_ids", positions(args).ids);
    return lm_head_(model_.call(std::move(inner)));
  }

  Value forward_cached(const Args& args) override {
    Args inner{args.positional, {}};
    const std::vector<std::string_view> names = input_names();
    for (const auto& [name, value] : args.named) {
      if (name == "logits_to_keep" || name == "second_per_grid_ts") continue;
      if (name != kPastKeyValues && std::ranges::find(names, name) == names.end()) {
        config_error("{} was called with {} and past_key_values; it takes no {} then", type_name(), name, name);
      }
      inner.named.emplace_back(name, value);
    }
    if (inner.positional.size() == 2) {
      inner.named.emplace_back("pixel_values", inner.positional[1]);
      inner.positional.pop_back();
    }
    const KeptLogits kept(args, args.tensor(0).shape(), config_.text);
    check_pairs(inner, type_name());
    if (!has_pictures(inner)) return lm_head_(kept.of(model_.call(std::move(inner))));
    check_is_first(args.find(kPastKeyValues));
    MropePositions found;
    if (inner.find("position_ids").is_none()) {
      found = positions(inner);
      inner.named.emplace_back("position_ids", found.ids);
    }
    const Value hidden = model_.call(std::move(inner));
    auto* offsets = args.find(kPastKeyValues)["offsets"].tensor().data<std::int64_t>();
    std::ranges::copy(found.deltas, offsets);  // the next tokens follow at this distance
    return lm_head_(kept.of(hidden));
  }

 private:
  static bool has_pictures(const Args& args) {
    return std::ranges::any_of(kKinds, [&](const Kind& kind) { return !args.find(kind.pixels).is_none(); });
  }

  MropePositions positions(const Args& args) const {
    const Value& mask = args.find("attention_mask");
    return mrope_positions(args.tensor(0), mask.is_none() ? Tensor() : mask.tensor(), vision_inputs(args), config_);
  }

  // Pictures come with the first tokens of a row.
  void check_is_first(const Value& cache) const {
    const Tensor& lengths = cache["lengths"];
    for (std::int64_t row = 0; row < lengths.numel(); ++row) {
      const std::int64_t length = lengths.data<std::int64_t>()[row];
      if (length == 0) continue;
      config_error(
          "{} was called with pictures for row {}, which has {} tokens in past_key_values; give pictures with the first "
          "tokens of a row",
          type_name(), row, length);
    }
  }

  const QwenVlConfig config_;
  Model& model_;
  nn::Child<nn::Module> lm_head_;
};

}  // namespace

std::shared_ptr<QwenVl> build_qwen_vl(const QwenVlConfig& config) {
  return std::make_shared<ForConditionalGeneration>(config);
}

void register_qwen_vl(ModelHub& hub) {
  for (const QwenVlVersion version : {QwenVlVersion::k2, QwenVlVersion::k2_5, QwenVlVersion::k3}) {
    hub.add(
        {std::string(architecture(version)), std::string(model_type(version))},
        [](const ConfigReader& config) { return build_qwen_vl(read_qwen_vl_config(config)); },
        [](const ConfigReader& config) {
          const QwenVlConfig read = read_qwen_vl_config(config);
          return ModelFacts{read.text.vocab_size, longest_sequence(read.text), to_json(read)};
        });
  }
}

}  // namespace loom::models
