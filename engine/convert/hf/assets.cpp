#include "engine/convert/hf/assets.h"

#include <array>
#include <set>
#include <system_error>

#include "engine/config/document.h"
#include "engine/core/error.h"
#include "engine/formats/folder_kind.h"
#include "engine/formats/safetensors/hf_weights.h"
#include "engine/io/atomic_file.h"
#include "models/hf/folder_files.h"

namespace loom::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "config.json";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kSingle = "model.safetensors";

// The files of Python code in "auto_map": {"AutoConfig": "configuration_x.XConfig"}.
void add_code(const config::Value& value, std::set<std::string>& names) {
  for (const config::Value& item : value.items()) add_code(item, names);
  if (!value.is_scalar()) return;
  const std::string module = value.scalar().substr(0, value.scalar().find('.'));
  const bool is_here = value.scalar().find("--") == std::string::npos && module.find('/') == std::string::npos;
  if (is_here && !module.empty()) names.insert(module + ".py");
}

}  // namespace

Assets::Assets(fs::path folder, const std::string& flag) : folder_(std::move(folder)) {
  if (const std::string why = io::why_no_model(folder_); !why.empty()) {
    config_error("{}: {} {}", flag, folder_.string(), why);
  }
  std::error_code error;
  if (!fs::is_regular_file(folder_ / kConfig, error)) {
    config_error("{}: {} has no {}; give the folder of the model, with {} and its tokenizer", flag, folder_.string(),
                 kConfig, kConfig);
  }
  config_text_ = config::read_text(folder_ / kConfig, "a config.json");
  config_ = config::parse_json(config_text_, (folder_ / kConfig).string());
  if (fs::exists(folder_ / kIndex, error)) {
    files_ = io::read_weight_map(folder_ / kIndex);
    names_.emplace();
    for (const auto& [name, file] : files_) names_->push_back(name);
  } else if (fs::exists(folder_ / kSingle, error)) {
    names_ = io::HfWeights(folder_).names();
  }
}

std::string Assets::wanted_by() const {
  if (!names_) return folder_.string();
  return (folder_ / (files_.empty() ? kSingle : kIndex)).string();
}

const config::Value* Assets::find(std::string_view key) const {
  const config::Value* value = config_.find(key);
  const config::Value* text = config_.find("text_config");
  if (text == nullptr) text = config_.find("llm_config");
  if ((value == nullptr || value->is_null()) && text != nullptr) value = text->find(key);
  return value;
}

std::optional<bool> Assets::ties_embeddings() const {
  const config::Value* value = find("tie_word_embeddings");
  if (value != nullptr) return value->boolean();
  return model_type() == "gpt2" ? std::optional(true) : std::nullopt;
}

std::optional<std::int64_t> Assets::experts() const {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    const config::Value* value = find(key);
    if (value != nullptr && value->whole()) return value->whole();
  }
  return std::nullopt;
}

std::string Assets::model_type() const {
  const config::Value* value = config_.find("model_type");
  return value != nullptr && value->is_scalar() ? value->scalar() : "";
}

void Assets::carry_to(const fs::path& folder, std::optional<DType> main_dtype, bool untied) const {
  io::write_text(folder / kConfig, models::edited_config(config_text_, {.untied = untied, .dtype = main_dtype}));
  models::carry_files(folder_, folder);
  std::set<std::string> code;
  if (const config::Value* map = config_.find("auto_map")) add_code(*map, code);
  std::error_code error;
  for (const std::string& name : code) {
    if (fs::is_regular_file(folder_ / name, error)) io::write_text(folder / name, models::file_text(folder_ / name));
  }
}

}  // namespace loom::checkpoint
