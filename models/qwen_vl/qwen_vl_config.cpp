#include "models/qwen_vl/qwen_vl_config.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "models/decoder/decoder_families.h"
#include "models/hub/built_values.h"
#include "models/hub/config_reader.h"
#include "models/hub/size_limits.h"

namespace loom::models {
namespace {

using Json = nlohmann::ordered_json;

struct VersionEntry {
  QwenVlVersion version;
  std::string_view model_type;
  std::string_view architecture;
  std::string_view vision_type;
  DecoderFamily text;
  std::string_view hidden_act;  // of the tower
};
constexpr std::array<VersionEntry, 3> kVersions{
    {{QwenVlVersion::k2, "qwen2_vl", "Qwen2VLForConditionalGeneration", "qwen2_vl_vision", DecoderFamily::kQwen2Vl,
      "quick_gelu"},
     {QwenVlVersion::k2_5, "qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl_vision",
      DecoderFamily::kQwen2_5Vl, "silu"},
     {QwenVlVersion::k3, "qwen3_vl", "Qwen3VLForConditionalGeneration", "qwen3_vl_vision", DecoderFamily::kQwen3Vl,
      "gelu_pytorch_tanh"}}};

const VersionEntry& entry_of(QwenVlVersion version) {
  return *std::ranges::find(kVersions, version, &VersionEntry::version);
}

constexpr std::array<SizeLimit, 10> kVisionLimits{{{"embed_dim", 1 << 20},
                                                   {"hidden_size", 1 << 20},
                                                   {"out_hidden_size", 1 << 20},
                                                   {"depth", 4096},
                                                   {"num_heads", 1 << 16},
                                                   {"intermediate_size", 1 << 24},
                                                   {"in_channels", 1 << 10},
                                                   {"in_chans", 1 << 10},
                                                   {"patch_size", 1 << 10},
                                                   {"temporal_patch_size", 1 << 6}}};

// The numbers in which the versions' classes differ.
QwenVisionConfig defaults_of(QwenVlVersion version) {
  QwenVisionConfig config{.version = version};
  if (version == QwenVlVersion::k2_5) {
    config.hidden_size = 3584;
    config.intermediate_size = 3420;
  } else if (version == QwenVlVersion::k3) {
    config.depth = 27;
    config.hidden_size = 1152;
    config.intermediate_size = 4304;
    config.patch_size = 16;
  }
  return config;
}

// The rotary embedding of the tower is not a matter of choice.
void check_vision_rotary(const ConfigReader& reader) {
  const auto rotary = reader.mapping("rope_parameters");
  if (!rotary) return;
  only_text(*rotary, "rope_type", "axial");
  if (rotary->number("rope_theta").value_or(10000) != 10000) rotary->reject("rope_theta", "only 10000 is built");
}

void check_blocks(const ConfigReader& reader, std::string_view key, const std::vector<std::int64_t>& blocks,
                  const QwenVisionConfig& config) {
  for (const std::int64_t block : blocks) {
    if (block < 0 || block >= config.depth) reader.reject(key, "blocks are numbered 0 to {}", config.depth - 1);
  }
  if (!std::ranges::is_sorted(blocks, std::ranges::less_equal{})) reader.reject(key, "the numbers must grow");
}

std::vector<std::int64_t> read_blocks(const ConfigReader& reader, std::string_view key,
                                      const std::vector<std::int64_t>& fallback) {
  return reader.has(key) ? reader.integers(key) : fallback;
}

void read_version_keys(const ConfigReader& reader, QwenVisionConfig& config) {
  if (config.version == QwenVlVersion::k2) {
    config.hidden_size = reader.count("embed_dim", config.hidden_size);
    config.out_hidden_size = reader.count("hidden_size", config.out_hidden_size);
    const double inner = static_cast<double>(config.hidden_size) * reader.positive("mlp_ratio", 4);
    config.intermediate_size = static_cast<std::int64_t>(std::min(inner, 1e9));
    if (config.intermediate_size < 1) reader.reject("mlp_ratio", "of embed_dim {} it makes no MLP", config.hidden_size);
    return;
  }
  config.hidden_size = reader.count("hidden_size", config.hidden_size);
  config.out_hidden_size = reader.count("out_hidden_size", config.out_hidden_size);
  config.intermediate_size = reader.count("intermediate_size", config.intermediate_size);
  if (config.version == QwenVlVersion::k2_5) {
    config.window_size = reader.count("window_size", config.window_size);
    config.tokens_per_second = reader.count("tokens_per_second", config.tokens_per_second);
    constexpr std::string_view kKey = "fullatt_block_indexes";
    config.fullatt_block_indexes = read_blocks(reader, kKey, config.fullatt_block_indexes);
    check_blocks(reader, kKey, config.fullatt_block_indexes, config);
    return;
  }
  constexpr std::string_view kKey = "deepstack_visual_indexes";
  config.deepstack_visual_indexes = read_blocks(reader, kKey, config.deepstack_visual_indexes);
  check_blocks(reader, kKey, config.deepstack_visual_indexes, config);
  config.num_position_embeddings = reader.count("num_position_embeddings", config.num_position_embeddings);
  const auto side = static_cast<std::int64_t>(std::sqrt(static_cast<double>(config.num_position_embeddings)));
  if (side * side != config.num_position_embeddings) reader.reject("num_position_embeddings", "a square is expected");
}

void check_vision(const ConfigReader& reader, const QwenVisionConfig& config) {
  if (config.hidden_size % (4 * config.num_heads) != 0) {
    reader.reject(config.version == QwenVlVersion::k2 ? "embed_dim" : "hidden_size",
                  "it must be a multiple of 4 num_heads ({})", 4 * config.num_heads);
  }
  const std::int64_t cell = config.patch_size * config.spatial_merge_size;
  if (config.version == QwenVlVersion::k2_5 && config.window_size % cell != 0) {
    reader.reject("window_size", "it must be a multiple of patch_size times spatial_merge_size ({})", cell);
  }
  const std::string of_hidden = fmt::format("{} of the tower", config.hidden_size);
  check_weight(reader, "intermediate_size", config.intermediate_size, config.hidden_size, of_hidden);
  check_weight(reader, "patch_size", config.patch_values(), config.hidden_size, of_hidden);
  check_weight(reader, "num_position_embeddings", config.num_position_embeddings, config.hidden_size, of_hidden);
  check_weight(reader, "spatial_merge_size", config.merged() * config.hidden_size,
               std::max(config.merged() * config.hidden_size, config.out_hidden_size), of_hidden);
}

QwenVisionConfig read_vision(const ConfigReader& reader, QwenVlVersion version) {
  QwenVisionConfig config = defaults_of(version);
  const std::string type = reader.text("model_type", entry_of(version).vision_type);
  if (type != entry_of(version).vision_type && type != model_type(version)) {
    reader.reject("model_type", "{} is expected", entry_of(version).vision_type);
  }
  check_sizes(reader, kVisionLimits);
  config.depth = reader.count("depth", config.depth);
  config.num_heads = reader.count("num_heads", config.num_heads);
  config.in_channels = reader.count("in_channels", reader.count("in_chans", config.in_channels));
  config.patch_size = reader.count("patch_size", reader.count("spatial_patch_size", config.patch_size));
  config.spatial_merge_size = reader.count("spatial_merge_size", config.spatial_merge_size);
  if (config.spatial_merge_size > 16) reader.reject("spatial_merge_size", "it must be at most 16");
  config.temporal_patch_size = reader.count("temporal_patch_size", config.temporal_patch_size);
  config.initializer_range = reader.positive("initializer_range", config.initializer_range);
  config.freeze = reader.flag("freeze", config.freeze);
  read_version_keys(reader, config);
  only_text(reader, "hidden_act", entry_of(version).hidden_act);
  check_vision_rotary(reader);
  check_vision(reader, config);
  if (reader.strict()) reader.refuse_unread();
  return config;
}

std::int64_t read_token(const ConfigReader& reader, std::string_view key, std::int64_t fallback,
                        const DecoderConfig& text) {
  const std::int64_t id = reader.integer(key).value_or(fallback);
  if (id < 0 || id >= text.vocab_size) {
    reader.reject(key, "ids go from 0 to {} (vocab_size is {})", text.vocab_size - 1, text.vocab_size);
  }
  return id;
}

Json vision_json(const QwenVisionConfig& config) {
  Json json;
  json["model_type"] = entry_of(config.version).vision_type;
  json["depth"] = config.depth;
  json["num_heads"] = config.num_heads;
  json["in_channels"] = config.in_channels;
  json["patch_size"] = config.patch_size;
  json["spatial_merge_size"] = config.spatial_merge_size;
  json["temporal_patch_size"] = config.temporal_patch_size;
  json["initializer_range"] = config.initializer_range;
  json["hidden_act"] = entry_of(config.version).hidden_act;
  if (config.version == QwenVlVersion::k2) {
    json["embed_dim"] = config.hidden_size;
    json["hidden_size"] = config.out_hidden_size;
    const auto width = static_cast<double>(config.hidden_size);
    double ratio = static_cast<double>(config.intermediate_size) / width;
    if (static_cast<std::int64_t>(width * ratio) < config.intermediate_size) ratio = std::nextafter(ratio, 1e9);
    if (config.intermediate_size % config.hidden_size == 0) {
      json["mlp_ratio"] = config.intermediate_size / config.hidden_size;
    } else {
      json["mlp_ratio"] = ratio;
    }
  } else {
    json["hidden_size"] = config.hidden_size;
    json["out_hidden_size"] = config.out_hidden_size;
    json["intermediate_size"] = config.intermediate_size;
  }
  if (config.version == QwenVlVersion::k2_5) {
    json["window_size"] = config.window_size;
    json["fullatt_block_indexes"] = config.fullatt_block_indexes;
    json["tokens_per_second"] = config.tokens_per_second;
  } else if (config.version == QwenVlVersion::k3) {
    json["deepstack_visual_indexes"] = config.deepstack_visual_indexes;
    json["num_position_embeddings"] = config.num_position_embeddings;
  }
  if (config.freeze) json["freeze"] = true;
  return json;
}

const VersionEntry* version_in(const ConfigReader& reader) {
  const std::string type = reader.text("model_type", "");
  const auto found = std::ranges::find(kVersions, type, &VersionEntry::model_type);
  return found == kVersions.end() ? nullptr : &*found;
}

// From text_config or, in older files, from beside vision_config.
DecoderConfig read_text(const ConfigReader& reader, QwenVlConfig& config) {
  const auto section = reader.mapping("text_config");
  const ConfigReader& text = section ? *section : reader;
  if (section) {
    const std::string_view built = model_type(entry_of(config.version).text);
    const std::string type = text.text("model_type", built);
    if (type != built && type != model_type(config.version)) text.reject("model_type", "{} is expected", built);
    config.freeze_text = text.flag("freeze", false);
  }
  DecoderConfig decoder = read_decoder_config(text, entry_of(config.version).text);
  if (decoder.rope_scaling.mrope_section.empty()) {
    text.reject(text.has("rope_scaling") ? "rope_scaling" : "rope_parameters",
                "the model needs its mrope_section: frequencies for time, height and width");
  }
  if (section && section->strict()) section->refuse_unread();
  return decoder;
}

}  // namespace

std::string_view model_type(QwenVlVersion version) { return entry_of(version).model_type; }
std::string_view architecture(QwenVlVersion version) { return entry_of(version).architecture; }

QwenVlConfig read_qwen_vl_config(const ConfigReader& reader) {
  QwenVlConfig config;
  const VersionEntry* version = version_in(reader);
  if (version == nullptr) reader.reject("model_type", "known are qwen2_vl, qwen2_5_vl, qwen3_vl");
  config.version = version->version;
  const auto vision = reader.mapping("vision_config");
  if (!vision) reader.reject("vision_config", "the model needs this section");
  config.vision = read_vision(*vision, config.version);
  config.text = read_text(reader, config);
  config.text.tie_word_embeddings = reader.flag("tie_word_embeddings", config.text.tie_word_embeddings);
  if (config.vision.out_hidden_size != config.text.hidden_size) {
    vision->reject(config.version == QwenVlVersion::k2 ? "hidden_size" : "out_hidden_size",
                   "it must be the text's hidden_size ({})", config.text.hidden_size);
  }
  config.image_token_id = read_token(reader, "image_token_id", config.image_token_id, config.text);
  config.video_token_id = read_token(reader, "video_token_id", config.video_token_id, config.text);
  config.vision_start_token_id = read_token(reader, "vision_start_token_id", config.vision_start_token_id, config.text);
  config.vision_end_token_id = read_token(reader, "vision_end_token_id", config.vision_end_token_id, config.text);
  if (reader.strict()) reader.refuse_unread();
  return config;
}

QwenVlConfig load_qwen_vl_config(const std::filesystem::path& path) {
  return read_qwen_vl_config(ConfigReader::load(path));
}

bool is_qwen_vl(const ConfigReader& reader) { return version_in(reader) != nullptr; }
bool is_qwen_vl(const std::filesystem::path& path) { return is_qwen_vl(ConfigReader::load(path)); }

std::string to_json(const QwenVlConfig& config) {
  Json json;
  json["architectures"] = {architecture(config.version)};
  json["model_type"] = model_type(config.version);
  json["vision_config"] = vision_json(config.vision);
  json["text_config"] = decoder_json(config.text);
  if (config.freeze_text) json["text_config"]["freeze"] = true;
  json["tie_word_embeddings"] = config.text.tie_word_embeddings;
  json["image_token_id"] = config.image_token_id;
  json["video_token_id"] = config.video_token_id;
  json["vision_start_token_id"] = config.vision_start_token_id;
  json["vision_end_token_id"] = config.vision_end_token_id;
  return json.dump(2) + "\n";
}

}  // namespace loom::models
