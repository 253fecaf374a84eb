#include "models/decoder_config.h"

#include <algorithm>
#include <array>

#include "engine/core/spelling.h"
#include "engine/tensor/io/mapped_file.h"
#include "models/config_reader.h"

namespace loom::models {
namespace {

struct FamilyNames {
  DecoderFamily family;
  std::string_view model_type;
  std::string_view architecture;
};
constexpr std::array<FamilyNames, 3> kFamilies{{{DecoderFamily::kQwen2, "qwen2", "Qwen2ForCausalLM"},
                                                {DecoderFamily::kLlama, "llama", "LlamaForCausalLM"},
                                                {DecoderFamily::kGpt2, "gpt2", "GPT2LMHeadModel"}}};

DecoderFamily read_family(const ConfigReader& reader) {
  const std::string type = reader.text("model_type");
  std::vector<std::string> known;
  for (const FamilyNames& names : kFamilies) {
    if (names.model_type == type) return names.family;
    known.emplace_back(names.model_type);
  }
  const auto near = nearest_spelling(type, known);
  reader.reject("model_type", "known are {}{}", fmt::join(known, ", "),
                near ? fmt::format("; did you mean '{}'?", *near) : "");
}

void refuse_dropout(const ConfigReader& reader, std::string_view key) {
  if (reader.number(key).value_or(0) != 0) reader.reject(key, "dropout is not built, set it to 0");
}

void refuse_flag(const ConfigReader& reader, std::string_view key, bool built) {
  if (reader.flag(key, built) != built) reader.reject(key, "only {} is built", built);
}

void refuse_other_text(const ConfigReader& reader, std::string_view key, std::string_view built) {
  if (reader.text(key, built) != built) reader.reject(key, "only \"{}\" is built", built);
}

void refuse_quantized(const ConfigReader& reader) {
  if (reader.has("quantization_config")) {
    reader.reject("quantization_config", "quantised weights are not built, use the unquantised model");
  }
}

void refuse_sliding_windows(const ConfigReader& reader) {
  const bool used = reader.flag("use_sliding_window", false);
  const auto window = reader.integer("sliding_window");
  if (used && window) reader.reject("sliding_window", "sliding windows are not built, set use_sliding_window to false");
  reader.integer("max_window_layers");
  for (const std::string& type : reader.texts("layer_types")) {
    if (type != "full_attention") reader.reject("layer_types", "only \"full_attention\" is built");
  }
}

// The base of the rotary frequencies, from either spelling.
double read_rope_theta(const ConfigReader& reader) {
  constexpr double kDefault = 10000.0;
  std::optional<double> theta;
  if (reader.has("rope_theta")) theta = reader.positive("rope_theta", kDefault);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const auto nested = reader.mapping(key);
    if (!nested) continue;
    for (const char* type_key : {"rope_type", "type"}) refuse_other_text(*nested, type_key, "default");
    if (nested->number("partial_rotary_factor").value_or(1) != 1)
      nested->reject("partial_rotary_factor", "only 1 is built");
    if (nested->has("rope_theta")) {
      const double inner = nested->positive("rope_theta", kDefault);
      if (theta && *theta != inner) nested->reject("rope_theta", "the file also says {}", *theta);
      theta = inner;
    }
    nested->refuse_unread();
  }
  return theta.value_or(kDefault);
}

// Qwen2 and Llama.
void read_rotary_family(const ConfigReader& reader, DecoderConfig& config) {
  config.hidden_size = reader.count("hidden_size");
  config.intermediate_size = reader.count("intermediate_size");
  config.num_hidden_layers = reader.count("num_hidden_layers");
  config.num_attention_heads = reader.count("num_attention_heads");
  config.max_position_embeddings = reader.count("max_position_embeddings");
  config.norm_eps = reader.positive("rms_norm_eps", 1e-6);
  config.rope_theta = read_rope_theta(reader);
  if (config.family == DecoderFamily::kQwen2) {
    config.num_key_value_heads = reader.count("num_key_value_heads");
    config.qkv_bias = true;
    refuse_sliding_windows(reader);
  } else {
    config.num_key_value_heads = reader.count("num_key_value_heads", config.num_attention_heads);
    config.qkv_bias = config.attention_output_bias = reader.flag("attention_bias", false);
    config.mlp_bias = reader.flag("mlp_bias", false);
  }
  if (reader.has("head_dim")) config.head_dim = reader.count("head_dim");
  config.tie_word_embeddings = reader.flag("tie_word_embeddings", false);
  refuse_other_text(reader, "hidden_act", "silu");
  refuse_dropout(reader, "attention_dropout");
}

void read_gpt2(const ConfigReader& reader, DecoderConfig& config) {
  config.hidden_size = reader.count("n_embd");
  config.intermediate_size = reader.count("n_inner", 4 * config.hidden_size);
  config.num_hidden_layers = reader.count("n_layer");
  config.num_attention_heads = config.num_key_value_heads = reader.count("n_head");
  config.max_position_embeddings = reader.count("n_positions");
  config.norm_eps = reader.positive("layer_norm_epsilon", 1e-5);
  config.qkv_bias = config.attention_output_bias = config.mlp_bias = true;
  config.tie_word_embeddings = reader.flag("tie_word_embeddings", true);
  refuse_other_text(reader, "activation_function", "gelu_new");
  for (const char* key : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) refuse_dropout(reader, key);
  refuse_flag(reader, "scale_attn_weights", true);
  refuse_flag(reader, "scale_attn_by_inverse_layer_idx", false);
  refuse_flag(reader, "reorder_and_upcast_attn", false);
  refuse_flag(reader, "add_cross_attention", false);
}

void check_heads(const ConfigReader& reader, DecoderConfig& config) {
  const bool gpt2 = config.family == DecoderFamily::kGpt2;
  const char* const hidden_key = gpt2 ? "n_embd" : "hidden_size";
  const char* const heads_key = gpt2 ? "n_head" : "num_attention_heads";
  if (config.head_dim == 0) {
    if (config.hidden_size % config.num_attention_heads != 0) {
      reader.reject(hidden_key, "it must be a multiple of {} ({})", heads_key, config.num_attention_heads);
    }
    config.head_dim = config.hidden_size / config.num_attention_heads;
  }
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    reader.reject(heads_key, "it must be a multiple of num_key_value_heads ({})", config.num_key_value_heads);
  }
  if (!gpt2 && config.head_dim % 2 != 0) {
    reader.reject(reader.has("head_dim") ? "head_dim" : hidden_key, "rotary embeddings need an even head_dim, not {}",
                  config.head_dim);
  }
}

DecoderConfig read_config(const ConfigReader& reader) {
  DecoderConfig config;
  config.family = read_family(reader);
  refuse_quantized(reader);
  config.vocab_size = reader.count("vocab_size");
  config.initializer_range = reader.positive("initializer_range", 0.02);
  config.bos_token_id = reader.integer("bos_token_id");
  config.eos_token_ids = reader.integers("eos_token_id");
  config.pad_token_id = reader.integer("pad_token_id");
  if (config.family == DecoderFamily::kGpt2) {
    read_gpt2(reader, config);
  } else {
    read_rotary_family(reader, config);
  }
  check_heads(reader, config);
  if (reader.strict()) reader.refuse_unread();
  return config;
}

using Json = nlohmann::ordered_json;

void write_rotary_family(const DecoderConfig& config, Json& json) {
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.intermediate_size;
  json["num_hidden_layers"] = config.num_hidden_layers;
  json["num_attention_heads"] = config.num_attention_heads;
  json["num_key_value_heads"] = config.num_key_value_heads;
  json["head_dim"] = config.head_dim;
  json["max_position_embeddings"] = config.max_position_embeddings;
  json["rms_norm_eps"] = config.norm_eps;
  json["rope_theta"] = config.rope_theta;
  json["rope_parameters"] = {{"rope_theta", config.rope_theta}, {"rope_type", "default"}};
  json["hidden_act"] = "silu";
  json["attention_dropout"] = 0.0;
  if (config.family == DecoderFamily::kLlama) {
    json["attention_bias"] = config.qkv_bias;
    json["mlp_bias"] = config.mlp_bias;
  } else {
    json["use_sliding_window"] = false;
  }
}

void write_gpt2(const DecoderConfig& config, Json& json) {
  json["n_embd"] = config.hidden_size;
  json["n_inner"] = config.intermediate_size;
  json["n_layer"] = config.num_hidden_layers;
  json["n_head"] = config.num_attention_heads;
  json["n_positions"] = config.max_position_embeddings;
  json["layer_norm_epsilon"] = config.norm_eps;
  json["activation_function"] = "gelu_new";
  for (const char* key : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) json[key] = 0.0;
}

Json ids_or_null(const std::vector<std::int64_t>& ids) {
  if (ids.empty()) return nullptr;
  return ids.size() == 1 ? Json(ids.front()) : Json(ids);
}

const FamilyNames& names_of(DecoderFamily family) {
  return *std::find_if(kFamilies.begin(), kFamilies.end(),
                       [&](const FamilyNames& names) { return names.family == family; });
}

}  // namespace

std::string_view model_type(DecoderFamily family) { return names_of(family).model_type; }
std::string_view architecture(DecoderFamily family) { return names_of(family).architecture; }

DecoderConfig parse_decoder_json(std::string_view text, std::string_view file_name) {
  return read_config(ConfigReader::from_json(text, file_name));
}

DecoderConfig parse_decoder_yaml(std::string_view text, std::string_view file_name) {
  return read_config(ConfigReader::from_yaml(text, file_name));
}

DecoderConfig load_decoder_config(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) return load_decoder_config(path / "config.json");
  const std::string extension = path.extension().string();
  if (extension != ".json" && extension != ".yaml" && extension != ".yml") {
    config_error("{}: a model is described by a folder with config.json, a .json or a .yaml file", path.string());
  }
  const io::MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  return extension == ".json" ? parse_decoder_json(text, path.string()) : parse_decoder_yaml(text, path.string());
}

std::string to_json(const DecoderConfig& config) {
  Json json;
  json["architectures"] = {architecture(config.family)};
  json["model_type"] = model_type(config.family);
  json["vocab_size"] = config.vocab_size;
  if (config.family == DecoderFamily::kGpt2) {
    write_gpt2(config, json);
  } else {
    write_rotary_family(config, json);
  }
  json["initializer_range"] = config.initializer_range;
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  json["bos_token_id"] = config.bos_token_id ? Json(*config.bos_token_id) : Json(nullptr);
  json["eos_token_id"] = ids_or_null(config.eos_token_ids);
  json["pad_token_id"] = config.pad_token_id ? Json(*config.pad_token_id) : Json(nullptr);
  return json.dump(2) + "\n";
}

}  // namespace loom::models
