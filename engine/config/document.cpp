#include "engine/config/document.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include "engine/core/error.h"

namespace loom::config {
namespace {

constexpr int kMostLevels = 64;
constexpr int kMostValues = 1'000'000;

template <class... Args>
[[noreturn]] void refuse(std::string_view words, Args&&... args) {
  throw ConfigError(fmt::format(fmt::runtime(words), std::forward<Args>(args)...));
}

SourceMark mark_at(const YAML::Mark& mark, std::string_view file) {
  return {std::string(file), mark.line + 1, mark.column + 1};
}

std::string joined(const std::string& path, const std::string& key) { return path.empty() ? key : path + "." + key; }

// --- YAML

// Takes no interest in a document but in where it begins.
class DocumentStart : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override { mark_ = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

  const YAML::Mark& mark() const { return mark_; }

 private:
  YAML::Mark mark_;
};

// The parser reads one document and leaves the rest; YAML::LoadAll would not end on some broken texts.
void refuse_second_document(const std::string& text, std::string_view file) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentStart first, second;
  parser.HandleNextDocument(first);
  if (parser.HandleNextDocument(second)) {
    config_error("{}: a second YAML document begins here; keep one document of key: value lines",
                 mark_at(second.mark(), file).text());
  }
}

// yaml-cpp's nodes as Values.
class YamlConverter {
 public:
  YamlConverter(std::string_view file, const DocumentWords& words) : file_(file), words_(words) {}

  Value convert(const YAML::Node& node, const std::string& path, const std::string& key, const Place& place) {
    if (++values_ > kMostValues) config_error("{}: more than {} values; aliases repeat too much", file_, kMostValues);
    if (++level_ > kMostLevels) {
      config_error("{}: {} is nested deeper than {} levels; an alias may stand inside what it names",
                   place.value.text(), path, kMostLevels);
    }
    Value value(kind_of(node), path, key, place);
    if (node.IsScalar()) fill_scalar(node, value);
    if (node.IsSequence()) fill_list(node, value);
    if (node.IsMap()) fill_mapping(node, value);
    --level_;
    return value;
  }

 private:
  static Value::Kind kind_of(const YAML::Node& node) {
    if (node.IsMap()) return Value::Kind::kMapping;
    if (node.IsSequence()) return Value::Kind::kList;
    return node.IsScalar() ? Value::Kind::kScalar : Value::Kind::kNull;
  }

  // "?" and "!" are the parser's tags of plain and of quoted scalars.
  static void fill_scalar(const YAML::Node& node, Value& value) {
    const bool plain = node.Tag() == "?";
    const bool quoted = node.Tag() == "!";
    value.set_scalar(node.Scalar(),
                     plain    ? Value::Style::kPlain
                     : quoted ? Value::Style::kQuoted
                              : Value::Style::kTagged,
                     plain || quoted ? "" : node.Tag());
  }

  // The parser marks an absent value at whatever follows it: it then stands where its key, or its list, does.
  void fill_list(const YAML::Node& node, Value& list) {
    for (std::size_t i = 0; i < node.size(); ++i) {
      const YAML::Node item = node[i];
      const SourceMark mark = item.IsNull() ? list.place().key : mark_at(item.Mark(), file_);
      list.add(convert(item, fmt::format("{}[{}]", list.path(), i), "", {mark, mark}));
    }
  }

  void fill_mapping(const YAML::Node& node, Value& mapping) {
    for (const auto& pair : node) {
      const SourceMark key_mark = mark_at(pair.first.Mark(), file_);
      if (!pair.first.IsScalar()) {
        config_error("{}: a key is {}; write key: value lines", key_mark.text(),
                     Value(kind_of(pair.first), "", "", {}).shown());
      }
      const std::string& key = pair.first.Scalar();
      const std::string path = joined(mapping.path(), key);
      if (const Value* first = mapping.find(key)) {
        refuse(words_.repeated, fmt::arg("where", key_mark.text()), fmt::arg("path", path),
               fmt::arg("first", first->place().key.line));
      }
      const SourceMark mark = pair.second.IsNull() ? key_mark : mark_at(pair.second.Mark(), file_);
      mapping.add(convert(pair.second, path, key, {key_mark, mark}));
    }
  }

  const std::string_view file_;
  const DocumentWords& words_;
  int values_ = 0;
  int level_ = 0;
};

YAML::Node load(const std::string& text, std::string_view file, const DocumentWords& words) {
  try {
    const YAML::Node document = YAML::Load(text);
    refuse_second_document(text, file);
    return document;
  } catch (const YAML::Exception& error) {
    const bool alias = error.msg.find("alias") != std::string::npos || error.msg.find("anchor") != std::string::npos;
    refuse(alias && !words.unknown_alias.empty() ? words.unknown_alias : words.unreadable,
           fmt::arg("where", mark_at(error.mark, file).text()), fmt::arg("problem", error.msg));
  }
}

// --- JSON

// nlohmann's events as Values: its own tree would forget how a number was written.
class JsonConverter {
 public:
  using Json = nlohmann::json;

  explicit JsonConverter(std::string_view text, std::string_view file) : size_(text.size()), file_(file) {}

  Value take() { return std::move(root_); }

  bool null() { return put(Value::Kind::kNull); }
  bool boolean(bool value) { return put_scalar(value ? "true" : "false", Value::Style::kPlain); }
  bool number_integer(Json::number_integer_t value) { return put_scalar(std::to_string(value), Value::Style::kPlain); }
  bool number_unsigned(Json::number_unsigned_t value) {
    return put_scalar(std::to_string(value), Value::Style::kPlain);
  }
  bool number_float(Json::number_float_t, const std::string& text) { return put_scalar(text, Value::Style::kPlain); }
  bool string(std::string& text) { return put_scalar(std::move(text), Value::Style::kQuoted); }
  bool binary(Json::binary_t&) { return false; }  // not in JSON text
  bool start_object(std::size_t) { return open(Value::Kind::kMapping); }
  bool start_array(std::size_t) { return open(Value::Kind::kList); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& key) {
    key_ = std::move(key);
    return true;
  }
  bool parse_error(std::size_t byte, const std::string&, const Json::exception& error) {
    if (dynamic_cast<const Json::parse_error*>(&error) == nullptr) {
      config_error("{}: not valid JSON (a number is out of range)", file_);
    }
    config_error("{}: not valid JSON (at byte {} of {})", file_, byte, size_);
  }

 private:
  Value made(Value::Kind kind) {
    const SourceMark mark{file_, 0, 0};
    if (open_.empty()) return {kind, "", "", {mark, mark}};
    const Value& parent = open_.back();
    if (parent.is_list()) {
      return {kind, fmt::format("{}[{}]", parent.path(), parent.items().size()), "", {mark, mark}};
    }
    return {kind, joined(parent.path(), key_), key_, {mark, mark}};
  }

  bool put(Value value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else {
      open_.back().add(std::move(value));
    }
    return true;
  }
  bool put(Value::Kind kind) { return put(made(kind)); }
  bool put_scalar(std::string text, Value::Style style) {
    Value value = made(Value::Kind::kScalar);
    value.set_scalar(std::move(text), style);
    return put(std::move(value));
  }
  bool open(Value::Kind kind) {
    if (open_.size() == kMostLevels) config_error("{}: nested deeper than {} levels", file_, kMostLevels);
    Value value = made(kind);
    open_.push_back(std::move(value));
    return true;
  }
  bool close() {
    Value done = std::move(open_.back());
    open_.pop_back();
    return put(std::move(done));
  }

  const std::size_t size_;
  const std::string file_;
  Value root_;
  std::vector<Value> open_;
  std::string key_;
};

}  // namespace

std::string read_text(const std::filesystem::path& path, std::string_view wanted) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    config_error("{}: is a folder; give the path of the YAML file itself", path.string());
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) config_error("{}: {}; give the path of {}", path.string(), std::strerror(errno), wanted);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Value parse_yaml(std::string_view text, std::string_view file_name, const DocumentWords& words) {
  // An end of line after the last value lets the parser mark the end of the file, not its beginning.
  const YAML::Node document = load(std::string(text) + "\n", file_name, words);
  if (document.IsNull()) refuse(words.empty, fmt::arg("file", file_name));
  const SourceMark mark = mark_at(document.Mark(), file_name);
  if (!document.IsMap()) {
    refuse(words.no_mapping, fmt::arg("where", mark.text()), fmt::arg("file", file_name),
           fmt::arg("kind", document.IsSequence() ? "a list" : "a single value"));
  }
  return YamlConverter(file_name, words).convert(document, "", "", {mark, mark});
}

Value parse_json(std::string_view text, std::string_view file_name) {
  JsonConverter converter(text, file_name);
  JsonConverter::Json::sax_parse(text, &converter);
  Value value = converter.take();
  if (value.is_mapping()) return value;
  config_error("{}: a JSON object is expected, not {}", file_name, value.is_list() ? "array" : "a single value");
}

}  // namespace loom::config
