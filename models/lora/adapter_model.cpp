#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <span>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/io/atomic_file.h"
#include "models/hf/fill_box.h"
#include "models/lora/adapter_folder.h"

namespace loom::models {
namespace {

nlohmann::ordered_json targets_json(const LoraOptions& options) {
  if (options.target_regex) return *options.target_regex;
  if (options.target_modules == std::vector<std::string>{"all-linear"}) return options.target_modules.front();
  return options.target_modules;
}

nlohmann::ordered_json init_json(LoraInit init) {
  if (init == LoraInit::kGaussian) return "gaussian";
  return init == LoraInit::kDefault;
}

template <class T>
nlohmann::ordered_json or_null(const std::vector<T>& items) {
  return items.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(items);
}

template <class T>
nlohmann::ordered_json object(const std::map<std::string, T>& items) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [key, value] : items) json[key] = value;
  return json;
}

// alpha as peft's users write it: 16, not 16.0.
nlohmann::ordered_json number(double value) {
  const auto whole = static_cast<std::int64_t>(value);
  if (static_cast<double>(whole) == value) return whole;
  return value;
}

struct Tuned {
  std::string path;
  nn::ParamSlot* slot = nullptr;
};

std::vector<Tuned> tuned_of(nn::Module& model) {
  const auto lora = lora_of(model);
  require(lora != nullptr, "an adapter is loaded into a model without adapters");
  std::vector<Tuned> tuned;
  for (auto& [path, slot] : model.named_slots()) {
    if (lora->is_tuned(path)) tuned.push_back({path, slot});
  }
  return tuned;
}

// Up to five names, and how many more.
std::string names_text(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 5;
  const std::size_t shown = std::min(kMost, names.size());
  return fmt::format("'{}'{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), "', '"),
                     names.size() > shown ? fmt::format(" and {} more", names.size() - shown) : "");
}

}  // namespace

void check_adapter(nn::Module& model, const AdapterFolder& folder) {
  const std::string file = escaped(folder.weights_file());
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
  std::vector<std::string> known;
  for (const Tuned& tuned : tuned_of(model)) {
    known.push_back(tuned.path);
    const auto found = folder.tensors().find(tuned.path);
    if (found == folder.tensors().end()) {
      missing.push_back(tuned.path);
    } else if (found->second->shape != tuned.slot->shard.global_shape) {
      config_error("{}: tensor {} is {}, and '{}' of the model is {}; the adapter is of another model", file,
                   shown_text(found->second->name), to_string(found->second->shape), tuned.path,
                   to_string(tuned.slot->shard.global_shape));
    }
  }
  for (const auto& [path, tensor] : folder.tensors()) {
    if (std::ranges::find(known, path) == known.end()) unexpected.push_back(path);
  }
  if (missing.empty() && unexpected.empty()) return;
  config_error(
      "{}: the adapter does not fit the model:{}{}{}; target_modules of {} and the model must match "
      "its training",
      file, missing.empty() ? "" : fmt::format(" missing are {}", names_text(missing)),
      missing.empty() || unexpected.empty() ? "" : ";",
      unexpected.empty() ? "" : fmt::format(" not expected are {}", names_text(unexpected)), folder.options().where);
}

void load_adapter(nn::Module& model, const AdapterFolder& folder) {
  check_adapter(model, folder);
  for (const Tuned& tuned : tuned_of(model)) {
    nn::fill_parts(tuned.slot->local(), tuned.path, [&](const nn::LocalTensor& box) {
      fill_box(box.value, box.shard.offset, *folder.tensors().at(tuned.path));
    });
  }
}

std::string adapter_config_json(const Lora& lora, const std::string& base) {
  const LoraOptions& o = lora.options;
  nlohmann::ordered_json json;
  json["peft_type"] = "LORA";
  json["task_type"] = lora.scores ? "SEQ_CLS" : "CAUSAL_LM";
  json["auto_mapping"] = nullptr;
  json["base_model_name_or_path"] = base.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(base);
  json["revision"] = nullptr;
  json["inference_mode"] = true;
  json["r"] = o.r;
  json["lora_alpha"] = number(o.alpha);
  json["lora_dropout"] = o.dropout;
  json["use_rslora"] = o.use_rslora;
  json["use_dora"] = false;
  json["bias"] = "none";
  json["fan_in_fan_out"] = lora.has_conv1d;
  json["target_modules"] = targets_json(o);
  json["modules_to_save"] = or_null(o.modules_to_save);
  json["layers_to_transform"] = or_null(o.layers_to_transform);
  json["layers_pattern"] = nullptr;
  json["rank_pattern"] = object(o.rank_pattern);
  json["alpha_pattern"] = object(o.alpha_pattern);
  json["init_lora_weights"] = init_json(o.init);
  return json.dump(2) + "\n";
}

void write_adapter_folder(const std::filesystem::path& folder, const std::string& config_json,
                          const std::vector<std::pair<std::string, Tensor>>& tensors) {
  std::filesystem::create_directories(folder);
  std::vector<io::TensorToWrite> stored;
  for (const auto& [path, tensor] : tensors) {
    const std::span bytes(static_cast<const std::byte*>(tensor.raw()), static_cast<std::size_t>(tensor.nbytes()));
    stored.push_back({std::string(kAdapterPrefix) + path, tensor.dtype(), tensor.shape(), bytes});
  }
  io::write_safetensors(folder / kAdapterWeightsFile, std::move(stored));
  io::write_text(folder / kAdapterConfigFile, config_json);
}

}  // namespace loom::models
