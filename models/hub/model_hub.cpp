#include "models/hub/model_hub.h"

#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/core/spelling.h"
#include "models/decoder/decoder_families.h"
#include "models/internvl/internvl.h"
#include "models/qwen_vl/qwen_vl.h"

namespace loom::models {
namespace {

// This library's own models. Called, not registered from static objects: a linker takes from a library only the files
// something refers to.
ModelHub built_in() {
  ModelHub hub;
  register_decoders(hub);
  register_internvl(hub);
  register_qwen_vl(hub);
  return hub;
}

}  // namespace

ModelHub& ModelHub::global() {
  static ModelHub hub = built_in();
  return hub;
}

void ModelHub::add(const std::vector<std::string>& names, Builder builder, Describer describer) {
  for (const std::string& name : names) {
    Entry& entry = entries_[name];
    entry.builder = builder;
    entry.describer = describer;
    ++entry.times;
  }
}

std::vector<std::string> ModelHub::names() const {
  std::vector<std::string> found;
  for (const auto& [name, entry] : entries_) found.push_back(name);
  return found;
}

const ModelHub::Entry* ModelHub::find(const ConfigReader& config) const {
  const std::string id = config.text("model_id", "");
  const std::vector<std::string> architectures = config.texts("architectures");
  const std::string type = config.text("model_type", "");
  for (const std::string& name :
       {id, id.empty() && !architectures.empty() ? architectures.front() : "", id.empty() ? type : ""}) {
    const auto found = entries_.find(name);
    if (found == entries_.end()) continue;
    if (found->second.times > 1) {
      config_error("{}: load model from config failed: '{}' is registered {} times; give each model a name of its own",
                   config.where("model_type"), name, found->second.times);
    }
    return &found->second;
  }
  return nullptr;
}

void ModelHub::reject(const ConfigReader& config) const {
  const auto architectures = config.texts("architectures");
  std::vector<std::pair<std::string, std::string>> tried;  // key, name
  if (config.has("model_id")) {
    tried.emplace_back("model_id", config.text("model_id"));
  } else {
    if (!architectures.empty()) tried.emplace_back("architectures[0]", architectures.front());
    if (config.has("model_type")) tried.emplace_back("model_type", config.text("model_type"));
  }
  const std::string known = fmt::format("{}", fmt::join(names(), ", "));
  if (tried.empty()) {
    config_error(
        "{}: load model from config failed: none of model_id, architectures and model_type is given; "
        "registered are {}",
        config.where("model_type"), known);
  }
  std::string words;
  std::optional<std::string> near;
  for (const auto& [key, name] : tried) {
    words += fmt::format("{}{} '{}'", words.empty() ? "" : " and ", key, name);
    if (!near) near = nearest_spelling(name, names());
  }
  config_error("{}: load model from config failed: {} {} not registered; registered are {}{}",
               config.where(tried.front().first), words, tried.size() == 1 ? "is" : "are", known,
               near ? fmt::format("; did you mean '{}'?", *near) : "");
}

const ModelHub::Entry& ModelHub::at(const ConfigReader& config) const {
  const Entry* entry = find(config);
  if (entry == nullptr) reject(config);
  return *entry;
}

std::shared_ptr<nn::Module> ModelHub::build(const ConfigReader& config) const { return at(config).builder(config); }

ModelFacts ModelHub::facts(const std::filesystem::path& path) const { return facts(ConfigReader::load(path)); }

ModelFacts ModelHub::facts(const ConfigReader& config) const {
  const Entry& entry = at(config);
  if (entry.describer) return entry.describer(config);
  return {.vocab_size = config.integer("vocab_size").value_or(0),
          .longest_sequence = config.integer("max_position_embeddings").value_or(0),
          .config_json = config.json()};
}

std::shared_ptr<nn::Module> ModelHub::build(const std::filesystem::path& path) const {
  return build(ConfigReader::load(path));
}

}  // namespace loom::models
