#include "models/mm_model/mm_model.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/config/document.h"
#include "engine/config/section.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"
#include "engine/io/json_text.h"
#include "models/hub/config_reader.h"
#include "models/internvl/internvl_config.h"
#include "models/mm_model/mm_values.h"
#include "models/qwen_vl/qwen_vl_config.h"

namespace loom::models::mm {
namespace {

using config::Value;
using Json = nlohmann::ordered_json;
using Values = std::map<std::string, Value, std::less<>>;

struct Family {
  std::string_view model_id;
  unsigned bit;
  std::string_view model_type;  // of config.json
};
constexpr std::array<Family, 7> kFamilies{{{"qwen2vl", kMmQwen2, "qwen2_vl"},
                                           {"qwen2_5vl", kMmQwen25, "qwen2_5_vl"},
                                           {"qwen3_vl", kMmQwen3, "qwen3_vl"},
                                           {"InternVL", kMmInternvl, "internvl"},
                                           {"InternVL2.5", kMmInternvl, "internvl"},
                                           {"InternVL3", kMmInternvl, "internvl"},
                                           {"internvl", kMmInternvl, "internvl"}}};

// A model of its own, not a misspelt one.
constexpr std::string_view kExperts = "qwen3_vl_moe";

std::string_view type_of(unsigned family) { return std::ranges::find(kFamilies, family, &Family::bit)->model_type; }

const Family& family_of(const Value& id) {
  std::vector<std::string> known;
  for (const Family& family : kFamilies) {
    if (id.is_text() && family.model_id == id.scalar()) return family;
    known.emplace_back(family.model_id);
  }
  const bool is_word = id.is_text() && id.scalar() != kExperts;
  const auto nearest = is_word ? nearest_spelling(id.scalar(), known) : std::nullopt;
  config_error("{}: {} is {}, which is not built; {}built are {}", id.where(), id.path(), id.shown(),
               nearest ? fmt::format("did you mean {}? ", *nearest) : "", fmt::join(known, ", "));
}

// Reads one file by the table.
class Reader {
 public:
  Reader(const Value& file, MmModel& model) : file_(file), model_(model) {}

  void run() {
    const Value* id = file_.find("model_id");
    if (id == nullptr || id->is_null()) {
      config_error("{}: the model has no model_id; write qwen2vl, qwen2_5vl, qwen3_vl or InternVL", model_.where);
    }
    const Family& family = family_of(*id);
    model_.family = family.bit;
    set_value(model_, "model_type", scalar_of(*id, std::string(family.model_type), Value::Style::kQuoted));
    const Value* encoder = part(file_, "image_encoder");
    const Value* vision = encoder == nullptr ? nullptr : part(*encoder, "vision_encoder");
    const Value* projector = encoder == nullptr ? nullptr : part(*encoder, "vision_projector");
    const Value* text = part(file_, "text_decoder");
    const Value* loss = part(file_, "loss_cfg");
    read(file_, MmSection::kModel, {"image_encoder", "text_decoder", "loss_cfg"});
    if (encoder != nullptr) refuse_others(*encoder, {"vision_encoder", "vision_projector"});
    if (vision != nullptr) read(*vision, MmSection::kVision);
    if (projector != nullptr) read(*projector, MmSection::kProjector);
    if (text != nullptr) read(*text, MmSection::kText);
    if (loss != nullptr) read(*loss, MmSection::kLoss);
    freeze_by_default(vision);
    add_section("", &file_, "");
    add_section("vision_config", vision, "image_encoder.vision_encoder");
    add_section("text_config", text, "text_decoder");
    add_section("text_config.rope_parameters", text, "text_decoder");
    settle_values(model_);
    if (!without_effect_.empty()) {
      model_.notices.push_back(
          fmt::format("{}: without effect here: {}", model_.where, fmt::join(without_effect_, ", ")));
    }
  }

 private:
  // Null where it is absent.
  static const Value* part(const Value& mapping, std::string_view key) {
    const Value* found = mapping.find(key);
    if (found == nullptr || found->is_null()) return nullptr;
    if (!found->is_mapping()) found->refuse("a mapping of keys");
    return found;
  }

  static void refuse_others(const Value& mapping, std::initializer_list<std::string_view> known) {
    for (const Value& member : mapping.items()) {
      if (std::ranges::find(known, member.key()) == known.end()) {
        config::refuse_key(member, std::span(known.begin(), known.size()));
      }
    }
  }

  void read(const Value& mapping, MmSection section, const std::vector<std::string_view>& parts = {}) {
    for (const Value& member : mapping.items()) {
      if (std::ranges::find(parts, member.key()) == parts.end()) read_key(member, key_of(member, section, parts));
    }
  }

  const MmKey& key_of(const Value& member, MmSection section, std::vector<std::string_view> known) const {
    unsigned others = 0;
    for (const MmKey& key : mm_model_keys()) {
      if (key.section != section) continue;
      const bool is_of_model = (key.models & model_.family) != 0;
      if (key.name == member.key() && is_of_model) return key;
      if (key.name == member.key()) others |= key.models;
      if (is_of_model) known.push_back(key.name);
    }
    if (others != 0) {
      config_error("{}: {} is a key of {}, and model_id makes {}; remove it", member.where(), member.path(),
                   models_text(others), models_text(model_.family));
    }
    config::refuse_key(member, known);
  }

  void read_key(const Value& member, const MmKey& key) {
    if (member.is_null()) return;
    if (key.effect == MmEffect::kNone) without_effect_.push_back(member.path());
    if (key.read == nullptr || key.read(key, member, model_)) return;
    config_error("{}: {} is {}: {}", member.where(), member.path(), member.shown(), key.about);
  }

  void freeze_by_default(const Value* vision) {
    if (vision == nullptr) return;
    const Value* freeze = vision->find("freeze");
    if (freeze != nullptr && !freeze->is_null()) return;
    model_.frozen.emplace_back("vision_tower");
    model_.notices.push_back(
        fmt::format("{}: {} has no freeze, and is not trained, as in MindSpeed-MM; write freeze: false to train it",
                    model_.where, vision->path()));
  }

  // A mapping of config.json, with the path that messages show.
  void add_section(const std::string& name, const Value* given, std::string_view path) {
    const std::string prefix = file_.path().empty() ? "" : file_.path() + ".";
    const std::string key = name.substr(name.rfind('.') + 1);
    model_.sections.emplace(
        name, Value(Value::Kind::kMapping, given != nullptr ? given->path() : prefix + std::string(path), key,
                    given != nullptr ? given->place() : file_.place()));
  }

  const Value& file_;
  MmModel& model_;
  std::vector<std::string> without_effect_;
};

MmModel read_mapping(const Value& mapping) {
  MmModel model;
  model.where = escaped(mapping.place().key.file);
  if (!mapping.is_mapping()) mapping.refuse("a mapping of keys");
  Reader(mapping, model).run();
  return model;
}

// --- The mapping of config.json

Value member_of(const Value& value, std::string key) {
  Value made(value.kind(), value.path(), std::move(key), value.place());
  if (value.is_scalar()) {
    made.set_scalar(value.scalar(), value.is_text() ? Value::Style::kQuoted : Value::Style::kPlain);
  }
  for (const Value& item : value.items()) made.add(item);
  return made;
}

// The mapping `name` with the values and mappings right below it.
Value mapping_of(const MmModel& model, const Values& values, const std::string& name) {
  Value mapping = model.sections.at(name);
  const std::string prefix = name.empty() ? "" : name + ".";
  const auto is_below = [&](std::string_view key) {
    return key.size() > prefix.size() && key.starts_with(prefix) && key.find('.', prefix.size()) == key.npos;
  };
  for (const auto& [key, value] : values) {
    if (is_below(key)) mapping.add(member_of(value, key.substr(prefix.size())));
  }
  for (const auto& [key, section] : model.sections) {
    if (is_below(key)) mapping.add(mapping_of(model, values, key));
  }
  return mapping;
}

void check_needed(const MmModel& model) {
  for (const MmKey& key : mm_model_keys()) {
    if (!key.is_needed || (key.models & model.family) == 0 || find_value(model, key.about) != nullptr) continue;
    const std::string_view section = path_of(key.section);
    config_error("{}: {}{}{} is not given, and fresh weights need it; write it, or give weights by --init-from-hf-path",
                 model.where, section, section.empty() ? "" : ".", key.name);
  }
}

// --- Against the configuration of weights

bool is_same(const Value& value, const Json& json) {
  if (json.is_boolean()) return value.boolean() == json.get<bool>();
  if (json.is_number()) return value.number() == json.get<double>();
  if (json.is_string()) return value.is_scalar() && value.scalar() == json.get<std::string>();
  if (!json.is_array()) return false;
  if (!value.is_list()) return std::ranges::all_of(json, [&](const Json& item) { return is_same(value, item); });
  return std::ranges::equal(value.items(), json,
                            [](const Value& one, const Json& other) { return is_same(one, other); });
}

const Json* find_json(const Json& json, std::string_view key) {
  const Json* at = &json;
  while (at != nullptr) {
    const std::string part(key.substr(0, key.find('.')));
    at = at->is_object() && at->contains(part) ? &(*at)[part] : nullptr;
    if (part.size() == key.size()) break;
    key.remove_prefix(part.size() + 1);
  }
  return at;
}

}  // namespace
}  // namespace loom::models::mm

namespace loom::models {

MmModel read_mm_model(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  const bool is_yaml = extension == ".yaml" || extension == ".yml";
  if (!is_yaml && extension != ".json") {
    config_error("{}: MindSpeed-MM's model is a .json file, or the section model of a .yaml file",
                 escaped(path.string()));
  }
  const std::string text = config::read_text(path, "a model.json");
  const config::Value file =
      is_yaml ? config::parse_python_yaml(text, path.string()) : config::parse_json(text, path.string());
  const config::Value* section = is_yaml ? file.find("model") : nullptr;
  return mm::read_mapping(section != nullptr ? *section : file);
}

MmModel parse_mm_model(std::string_view json, std::string_view file_name) {
  return mm::read_mapping(config::parse_json(json, file_name));
}

ConfigReader reader_of(const MmModel& model) {
  mm::check_needed(model);
  return ConfigReader::from_mapping(mm::mapping_of(model, complete_values(model), ""));
}

std::string config_json(const MmModel& model) {
  const ConfigReader reader = reader_of(model);
  if (model.family != kMmInternvl) return to_json(read_qwen_vl_config(reader));
  InternVLConfig config = read_internvl_config(reader);
  config.image_seq_length = config.image_tokens();
  return to_json(config);
}

void check_weights(const MmModel& model, const ConfigReader& weights) {
  const std::string where = weights.value().where();
  const std::string type = weights.text("model_type", "");
  if (type != mm::type_of(model.family)) {
    const config::Value& said = *find_value(model, "model_type");
    config_error("{}: {} makes model_type {}, and it is {} in {}; give the weights of that model", said.where(),
                 said.path(), said.scalar(), type.empty() ? "absent" : shown_text(type), where);
  }
  const mm::Json json = io::parse_ordered_json(
      model.family == kMmInternvl ? to_json(read_internvl_config(weights)) : to_json(read_qwen_vl_config(weights)),
      where);
  for (const auto& [key, value] : model.values) {
    const mm::Json* found = mm::find_json(json, key);
    if (found == nullptr ? value.boolean() == false : mm::is_same(value, *found)) continue;
    config_error(
        "{}: {} makes {} {}, and it is {} in {}; the weights are what their configuration says: write that, or remove the "
        "key",
        value.where(), value.path(), key, shown_text(value.json()),
        found == nullptr ? "absent" : shown_text(found->dump()), where);
  }
}

}  // namespace loom::models
