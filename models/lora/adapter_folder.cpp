#include "models/lora/adapter_folder.h"

#include <algorithm>
#include <fmt/core.h>
#include <optional>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "models/hub/config_reader.h"

namespace loom::models {
namespace {

constexpr std::string_view kHalfA = ".lora_A.weight";
constexpr std::string_view kHalfB = ".lora_B.weight";

std::filesystem::path existing(const std::filesystem::path& folder, const char* file) {
  std::error_code unreadable;
  if (std::filesystem::exists(folder / file, unreadable)) return folder / file;
  config_error("{}: there is no {}; give a folder that peft wrote ({} and {})", escaped(folder.string()), file,
               kAdapterConfigFile, kAdapterWeightsFile);
}

// Keys that change the result where they are neither absent, null, false nor empty.
constexpr std::string_view kNotBuilt[] = {"use_dora",
                                          "use_qalora",
                                          "use_bdlora",
                                          "lora_bias",
                                          "layer_replication",
                                          "target_parameters",
                                          "trainable_token_indices",
                                          "exclude_modules",
                                          "alora_invocation_tokens",
                                          "arrow_config",
                                          "kasa_config",
                                          "velora_config",
                                          "monteclora_config",
                                          "loftq_config"};

bool is_nothing(const config::Value& value) {
  if (value.is_null()) return true;
  if (value.is_list() || value.is_mapping()) return value.items().empty();
  return value.boolean() == false;
}

void refuse_not_built(const ConfigReader& config) {
  for (const std::string_view key : kNotBuilt) {
    const config::Value* value = config.given(key);
    if (value == nullptr || is_nothing(*value)) continue;
    config.reject(key, "adapters with it are not built; train one without it");
  }
}

LoraInit init_of(const ConfigReader& config) {
  const config::Value* value = config.given("init_lora_weights");
  if (value == nullptr || value->is_null() || value->boolean() == true) return LoraInit::kDefault;
  if (value->boolean() == false) return LoraInit::kRandom;
  const std::string text = config.text("init_lora_weights");
  if (text == "gaussian") return LoraInit::kGaussian;
  if (text == "eva" || text == "orthogonal") return LoraInit::kDefault;  // the base is as it was, the values are here
  config.reject("init_lora_weights",
                "with it the base weights were changed too; save the adapter with peft's path_initial_model_for_weight_"
                "conversion, or use one with true, false or gaussian");
}

template <class T>
std::map<std::string, T> patterns_of(const ConfigReader& config, std::string_view key) {
  std::map<std::string, T> patterns;
  const auto mapping = config.mapping(key);
  if (!mapping) return patterns;
  for (const config::Value& member : mapping->value().items()) {
    const auto number = member.number();
    const auto whole = member.whole();
    if (!number || (std::is_integral_v<T> && !whole)) member.refuse("a number");
    patterns[member.key()] = static_cast<T>(*number);
  }
  return patterns;
}

void read_targets(const ConfigReader& config, LoraOptions& options) {
  const config::Value* targets = config.given("target_modules");
  if (targets == nullptr || targets->is_null()) {
    config.reject("target_modules", "give a list of modules, a regex, or all-linear");
  }
  if (!targets->is_scalar()) {
    options.target_modules = config.texts("target_modules");
    std::ranges::sort(options.target_modules);  // peft writes a set, in no order
    return;
  }
  const std::string text = config.text("target_modules");
  if (text == "all-linear") {
    options.target_modules = {text};
  } else {
    options.target_regex = text;
  }
}

// "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight" -> "model.layers.0...lora_A.weight".
std::string path_of(std::string_view name) {
  std::string path(name.starts_with(kAdapterPrefix) ? name.substr(kAdapterPrefix.size()) : name);
  for (const std::string_view part : {".lora_A", ".lora_B", ".modules_to_save"}) {
    const std::size_t at = path.rfind(std::string(part) + ".default.");
    if (at != std::string::npos) path.erase(at + part.size(), std::string_view(".default").size());
  }
  const std::size_t whole = path.rfind(".modules_to_save.");
  if (whole != std::string::npos) path.erase(whole, std::string_view(".modules_to_save").size());
  return path;
}

}  // namespace

AdapterFolder::AdapterFolder(const std::filesystem::path& folder)
    : folder_(folder), weights_((existing(folder, kAdapterConfigFile), existing(folder, kAdapterWeightsFile))) {
  read_config();
  read_names();
  pair_up();
}

void AdapterFolder::read_config() {
  const std::filesystem::path file = folder_ / kAdapterConfigFile;
  const ConfigReader config = ConfigReader::load(file);
  const std::string type = config.text("peft_type");
  if (type != "LORA") config.reject("peft_type", "only LORA is built");
  refuse_not_built(config);
  if (const std::string bias = config.text("bias", "none"); bias != "none") {
    config.reject("bias", "trained biases are not built; use an adapter with bias none");
  }
  options_.r = config.count("r");
  options_.alpha = config.positive("lora_alpha", 8);
  options_.dropout = config.number("lora_dropout").value_or(0);
  options_.use_rslora = config.flag("use_rslora", false);
  options_.init = init_of(config);
  options_.modules_to_save = config.texts("modules_to_save");
  options_.layers_to_transform = config.integers("layers_to_transform");
  options_.rank_pattern = patterns_of<std::int64_t>(config, "rank_pattern");
  options_.alpha_pattern = patterns_of<double>(config, "alpha_pattern");
  options_.load = folder_;
  options_.where = escaped(file.string());
  read_targets(config, options_);
  fan_in_fan_out_ = config.flag("fan_in_fan_out", false);
  base_ = config.text("base_model_name_or_path", "");
  check(options_);
}

void AdapterFolder::read_names() {
  for (const io::StoredTensor& tensor : weights_.tensors()) {
    const auto refuse = [&](std::string_view why) {
      config_error("{}: tensor {}: {}", escaped(weights_file()), shown_text(tensor.name), why);
    };
    if (tensor.name.find("lora_magnitude_vector") != std::string::npos) refuse("DoRA is not built");
    if (tensor.name.find("lora_embedding_") != std::string::npos) refuse("adapters of embeddings are not built");
    if (!is_floating(tensor.dtype)) refuse(fmt::format("it is {}; use fp32, bf16 or fp16", name(tensor.dtype)));
    if (tensors_.emplace(path_of(tensor.name), &tensor).second) continue;
    refuse("another tensor of the file means the same parameter");
  }
}

void AdapterFolder::pair_up() {
  const std::string file = escaped(weights_file());
  for (const auto& [path, tensor] : tensors_) {
    if (!path.ends_with(kHalfA) && !path.ends_with(kHalfB)) continue;
    const bool is_a = path.ends_with(kHalfA);
    const std::string module = path.substr(0, path.size() - kHalfA.size());
    const auto other = tensors_.find(fmt::format("{}{}", module, is_a ? kHalfB : kHalfA));
    if (other == tensors_.end()) {
      config_error("{}: tensor {} has no {} beside it; an adapter has both", file, shown_text(tensor->name),
                   is_a ? "lora_B" : "lora_A");
    }
    if (!is_a) continue;
    const io::StoredTensor& a = *tensor;
    const io::StoredTensor& b = *other->second;
    if (a.shape.ndim() != 2 || b.shape.ndim() != 2 || a.shape[0] != b.shape[1]) {
      config_error("{}: the ranks of A and B of {} differ: A is {}, B is {}; A is [r, in] and B [out, r]", file,
                   shown_text(module), to_string(a.shape), to_string(b.shape));
    }
    if (a.shape[0] != options_.rank_of(module)) {
      config_error("{}: the adapter of {} has rank {}, and {} says r is {}; they are of different adapters", file,
                   shown_text(module), a.shape[0], options_.where, options_.rank_of(module));
    }
    pairs_.push_back({module, &a, &b});
  }
  if (pairs_.empty()) {
    config_error("{}: none of its {} tensors is one of an adapter (.lora_A.weight, .lora_B.weight)", file,
                 tensors_.size());
  }
}

}  // namespace loom::models
