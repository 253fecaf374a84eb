#include "models/hub/config_reader.h"

#include <cmath>
#include <yaml-cpp/yaml.h>

#include "engine/core/spelling.h"
#include "engine/io/mapped_file.h"

namespace loom::models {

using Json = nlohmann::ordered_json;

// YAML as the same tree JSON would give, noting where keys stand.
struct ConfigReader::YamlToJson {
  std::string file;
  Marks marks;

  std::string place(const YAML::Mark& mark) const {
    return fmt::format("{}:{}:{}", file, mark.line + 1, mark.column + 1);
  }

  static Json scalar(const YAML::Node& node) {
    const std::string& text = node.Scalar();
    if (node.Tag() == "!") return text;  // quoted
    bool flag = false;
    std::int64_t integer = 0;
    double number = 0;
    if (YAML::convert<bool>::decode(node, flag)) return flag;
    if (YAML::convert<std::int64_t>::decode(node, integer)) return integer;
    if (YAML::convert<double>::decode(node, number)) return number;
    return text;
  }

  Json mapping(const YAML::Node& node, const std::string& prefix) {
    Json object = Json::object();
    for (const auto& entry : node) {
      const std::string key = entry.first.as<std::string>();
      if (object.contains(key)) {
        config_error("{}: key '{}' is given twice", place(entry.first.Mark()), prefix + key);
      }
      marks[prefix + key] = {entry.first.Mark().line + 1, entry.first.Mark().column + 1};
      object[key] = convert(entry.second, prefix + key + ".");
    }
    return object;
  }

  Json convert(const YAML::Node& node, const std::string& prefix) {
    switch (node.Type()) {
      case YAML::NodeType::Map:
        return mapping(node, prefix);
      case YAML::NodeType::Scalar:
        return scalar(node);
      case YAML::NodeType::Sequence: {
        Json list = Json::array();
        for (const YAML::Node& item : node) list.push_back(convert(item, prefix));
        return list;
      }
      default:
        return nullptr;
    }
  }
};

ConfigReader::ConfigReader(Json values, std::string file, std::shared_ptr<const Marks> marks, std::string prefix,
                           bool strict)
    : values_(std::move(values)),
      file_(std::move(file)),
      marks_(std::move(marks)),
      prefix_(std::move(prefix)),
      strict_(strict) {}

ConfigReader ConfigReader::from_json(std::string_view text, std::string_view file_name) {
  Json values;
  try {
    values = Json::parse(text);
  } catch (const Json::parse_error& error) {
    config_error("{}: not valid JSON (at byte {} of {})", file_name, error.byte, text.size());
  } catch (const Json::exception&) {
    config_error("{}: not valid JSON (a number is out of range)", file_name);
  }
  if (!values.is_object()) config_error("{}: a JSON object is expected, not {}", file_name, values.type_name());
  return {std::move(values), std::string(file_name), std::make_shared<Marks>(), "", false};
}

ConfigReader ConfigReader::from_yaml(std::string_view text, std::string_view file_name) {
  YamlToJson converter{std::string(file_name), {}};
  Json values;
  try {
    values = converter.convert(YAML::Load(std::string(text)), "");
  } catch (const YAML::Exception& error) {
    config_error("{}: not valid YAML ({})", converter.place(error.mark), error.msg);
  }
  if (!values.is_object()) config_error("{}: a mapping of keys to values is expected", file_name);
  return {std::move(values), std::string(file_name), std::make_shared<Marks>(std::move(converter.marks)), "", true};
}

ConfigReader ConfigReader::load(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) return load(path / "config.json");
  const std::string extension = path.extension().string();
  if (extension != ".json" && extension != ".yaml" && extension != ".yml") {
    config_error("{}: a model is described by a folder with config.json, a .json or a .yaml file", path.string());
  }
  const io::MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  return extension == ".json" ? from_json(text, path.string()) : from_yaml(text, path.string());
}

std::string ConfigReader::where(std::string_view key) const {
  const auto mark = marks_->find(dotted(key));
  return mark == marks_->end() ? file_ : fmt::format("{}:{}:{}", file_, mark->second.line, mark->second.column);
}

const Json* ConfigReader::find(std::string_view key) const {
  asked_.emplace(key);
  const auto found = values_.find(std::string(key));
  return found == values_.end() || found->is_null() ? nullptr : &*found;
}

bool ConfigReader::has(std::string_view key) const { return find(key) != nullptr; }

void ConfigReader::reject_value(std::string_view key, std::string_view message) const {
  const auto found = values_.find(std::string(key));
  config_error("{}: {} is {}; {}", where(key), dotted(key), found == values_.end() ? "absent" : found->dump(), message);
}

void ConfigReader::reject_missing(std::string_view key) const {
  std::vector<std::string> others;
  for (const auto& item : values_.items()) {
    if (!asked_.contains(item.key())) others.push_back(item.key());
  }
  if (const auto near = nearest_spelling(key, others)) {
    config_error("{}: unknown key '{}'; did you mean '{}'?", where(*near), dotted(*near), dotted(key));
  }
  config_error("{}: {} is missing", file_, dotted(key));
}

const Json& ConfigReader::required(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) reject_missing(key);
  return *value;
}

std::int64_t ConfigReader::count(std::string_view key) const {
  required(key);
  return count(key, 1);
}

std::int64_t ConfigReader::count(std::string_view key, std::int64_t fallback) const {
  const std::int64_t value = integer(key).value_or(fallback);
  if (value < 1) reject(key, "it must be at least 1");
  return value;
}

std::optional<std::int64_t> ConfigReader::integer(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number_integer()) reject(key, "a whole number is expected");
  return value->get<std::int64_t>();
}

std::vector<std::int64_t> ConfigReader::integers(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_array()) return {*integer(key)};
  std::vector<std::int64_t> list;
  for (const Json& item : *value) {
    if (!item.is_number_integer()) reject(key, "whole numbers are expected");
    list.push_back(item.get<std::int64_t>());
  }
  return list;
}

std::optional<double> ConfigReader::number(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) reject(key, "a number is expected");
  return value->get<double>();
}

double ConfigReader::positive(std::string_view key, double fallback) const {
  const double value = number(key).value_or(fallback);
  if (!(value > 0) || !std::isfinite(value)) reject(key, "it must be greater than 0");
  return value;
}

bool ConfigReader::flag(std::string_view key, bool fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) reject(key, "true or false is expected");
  return value->get<bool>();
}

std::string ConfigReader::text(std::string_view key) const {
  required(key);
  return text(key, "");
}

std::string ConfigReader::text(std::string_view key, std::string_view fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string()) reject(key, "a text is expected");
  return value->get<std::string>();
}

std::vector<std::string> ConfigReader::texts(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_array()) reject(key, "a list of texts is expected");
  std::vector<std::string> list;
  for (const Json& item : *value) {
    if (!item.is_string()) reject(key, "a list of texts is expected");
    list.push_back(item.get<std::string>());
  }
  return list;
}

std::optional<ConfigReader> ConfigReader::mapping(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) reject(key, "a mapping is expected");
  return ConfigReader(*value, file_, marks_, dotted(key) + ".", strict_);
}

void ConfigReader::refuse_unread() const {
  const std::vector<std::string> known(asked_.begin(), asked_.end());
  for (const auto& item : values_.items()) {
    if (asked_.contains(item.key())) continue;
    const auto near = nearest_spelling(item.key(), known);
    config_error("{}: unknown key '{}'{}", where(item.key()), dotted(item.key()),
                 near ? fmt::format("; did you mean '{}'?", dotted(*near)) : "");
  }
}

std::string ConfigReader::json() const { return values_.dump(2) + "\n"; }

}  // namespace loom::models
