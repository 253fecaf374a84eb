#include "models/internvl/config_parts.h"

#include <array>
#include <cmath>

#include "models/decoder/decoder_families.h"
#include "models/hub/size_limits.h"

namespace loom::models {
namespace {

constexpr std::int64_t kMostSide = 1 << 16;  // pixels

constexpr std::array<SizeLimit, 5> kVisionLimits{{{"hidden_size", 1 << 20},
                                                  {"num_hidden_layers", 4096},
                                                  {"num_attention_heads", 1 << 16},
                                                  {"intermediate_size", 1 << 24},
                                                  {"num_channels", 1 << 10}}};

bool read_norm_type(const ConfigReader& reader, bool rms_norm) {
  const std::string type = reader.text("norm_type", rms_norm ? "rms_norm" : "layer_norm");
  if (type != "layer_norm" && type != "rms_norm") reader.reject("norm_type", "known are layer_norm, rms_norm");
  return type == "rms_norm";
}

}  // namespace

ConfigReader section(const ConfigReader& reader, std::string_view key) {
  auto nested = reader.mapping(key);
  if (!nested) reader.reject(key, "the model needs this section");
  return *std::move(nested);
}

void only_flag(const ConfigReader& reader, std::string_view key, bool built) {
  if (reader.flag(key, built) != built) reader.reject(key, "only {} is built", built);
}

void no_dropout(const ConfigReader& reader, std::string_view key) {
  if (reader.number(key).value_or(0) != 0) reader.reject(key, "dropout is not built, set it to 0");
}

std::int64_t read_side(const ConfigReader& reader, std::string_view key, std::int64_t fallback) {
  const std::vector<std::int64_t> sizes = reader.integers(key);
  if (sizes.empty() && !reader.has(key)) return fallback;
  if (sizes.empty() || sizes.size() > 2 || sizes.front() < 1)
    reader.reject(key, "a size or [height, width] is expected");
  if (sizes.front() > kMostSide) reader.reject(key, "it must be at most {}", kMostSide);
  if (sizes.back() != sizes.front()) reader.reject(key, "only squares are built");
  return sizes.front();
}

void read_vision_sizes(const ConfigReader& reader, InternVLVisionConfig& config) {
  check_sizes(reader, kVisionLimits);
  config.hidden_size = reader.count("hidden_size", config.hidden_size);
  config.num_hidden_layers = reader.count("num_hidden_layers", config.num_hidden_layers);
  config.num_attention_heads = reader.count("num_attention_heads", config.num_attention_heads);
  config.intermediate_size = reader.count("intermediate_size", config.intermediate_size);
  config.image_size = read_side(reader, "image_size", config.image_size);
  config.patch_size = read_side(reader, "patch_size", config.patch_size);
  config.num_channels = reader.count("num_channels", config.num_channels);
  config.layer_norm_eps = reader.positive("layer_norm_eps", config.layer_norm_eps);
  config.initializer_range = reader.positive("initializer_range", config.initializer_range);
  config.rms_norm = read_norm_type(reader, config.rms_norm);
}

void check_vision(const ConfigReader& reader, const InternVLVisionConfig& config) {
  if (config.hidden_size % config.num_attention_heads != 0) {
    reader.reject("hidden_size", "it must be a multiple of num_attention_heads ({})", config.num_attention_heads);
  }
  if (config.image_size % config.patch_size != 0) {
    reader.reject("image_size", "it must be a multiple of patch_size ({})", config.patch_size);
  }
  const std::string of_hidden = fmt::format("hidden_size {}", config.hidden_size);
  check_weight(reader, "intermediate_size", config.intermediate_size, config.hidden_size, of_hidden);
  check_weight(reader, "image_size", config.grid() * config.grid(), config.hidden_size, of_hidden);
  check_weight(reader, "patch_size", config.patch_size * config.patch_size, config.num_channels * config.hidden_size,
               fmt::format("{} channels and {}", config.num_channels, of_hidden));
}

void read_text(const ConfigReader& reader, InternVLConfig& config) {
  config.freeze_text = reader.flag("freeze", false);
  config.text = read_decoder_config(reader);
  if (config.text.family == DecoderFamily::kGpt2) {
    reader.reject("model_type", "a decoder with rotary positions is expected");
  }
  if (config.text.moe && config.text.moe->has_router_loss()) {
    reader.reject("output_router_logits",
                  "the routers' load-balancing loss is built for models of text alone; set it to false");
  }
}

void read_downsample_factor(const ConfigReader& reader, InternVLConfig& config) {
  constexpr std::string_view kKey = "downsample_ratio";
  const double inverse = 1.0 / reader.positive(kKey, 0.5);
  const double factor = std::round(inverse);
  if (factor < 1 || std::abs(inverse - factor) > 1e-6) {
    reader.reject(kKey, "only 1 divided by a whole number is built");
  }
  const std::int64_t grid = config.image_size() / config.vision.patch_size;
  if (factor > static_cast<double>(grid) || grid % static_cast<std::int64_t>(factor) != 0) {
    reader.reject(kKey, "the {} x {} patches of an image cannot be joined in squares of {:.0f}", grid, grid, factor);
  }
  config.downsample_factor = static_cast<std::int64_t>(factor);
}

void read_image_token_id(const ConfigReader& reader, std::string_view text_section, std::int64_t fallback,
                         InternVLConfig& config) {
  config.image_token_id = reader.integer("image_token_id").value_or(fallback);
  if (config.image_token_id >= 0 && config.image_token_id < config.text.vocab_size) return;
  reader.reject("image_token_id", "ids go from 0 to {} ({}.vocab_size is {})", config.text.vocab_size - 1, text_section,
                config.text.vocab_size);
}

}  // namespace loom::models
