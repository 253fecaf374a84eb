#include "engine/config/document.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fmt/format.h>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <sys/stat.h>
#include <vector>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include "engine/core/descriptor.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::config {
namespace {

constexpr std::int64_t kMostBytes = std::int64_t{16} << 20;
constexpr int kMostLevels = 64;
constexpr int kMostValues = 1'000'000;

template <class... Args>
[[noreturn]] void refuse(std::string_view words, Args&&... args) {
  throw ConfigError(fmt::format(fmt::runtime(words), std::forward<Args>(args)...));
}

SourceMark mark_at(const YAML::Mark& mark, std::string_view file) {
  return {std::string(file), mark.line + 1, mark.column + 1};
}

// Paths are for messages.
std::string joined(const std::string& path, const std::string& key) {
  return path.empty() ? shown_text(key) : path + "." + shown_text(key);
}

void check_utf8(std::string_view text, std::string_view file) {
  const auto at = invalid_utf8(text);
  if (!at) return;
  const std::string_view before = text.substr(0, *at);
  const auto line = std::ranges::count(before, '\n') + 1;
  const std::size_t begin = before.rfind('\n') + 1;  // 0 in the first line
  config_error("{}:{}:{}: the byte \\x{:02x} is not UTF-8; save the file as UTF-8", escaped(file), line,
               *at - begin + 1, static_cast<unsigned char>(text[*at]));
}

// --- Files

std::string_view kind_of_file(mode_t mode) {
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return S_ISCHR(mode) || S_ISBLK(mode) ? "a device" : "no regular file";
}

void check_file(const struct stat& status, const std::string& name) {
  if (S_ISDIR(status.st_mode)) config_error("{}: is a folder; give the path of the YAML file itself", name);
  if (!S_ISREG(status.st_mode)) {
    config_error("{}: is {}; give the path of a regular file", name, kind_of_file(status.st_mode));
  }
  if (status.st_size > kMostBytes) {
    config_error("{}: has {} bytes, above the {} that a configuration may have; give the right file", name,
                 status.st_size, kMostBytes);
  }
}

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

// Refuses an anchor that is defined twice: the later one holds in YAML 1.2, and PyYAML reads no such file.
class Anchors final : public DocumentStart {
 public:
  explicit Anchors(std::string_view file) : file_(file) {}
  void OnAnchor(const YAML::Mark& mark, const std::string& name) override {
    const auto [first, fresh] = lines_.try_emplace(name, mark.line + 1);
    if (fresh) return;
    config_error("{}: the anchor &{} is defined again, first at line {}; PyYAML reads no such file: rename one of them",
                 mark_at(mark, file_).text(), shown_text(name), first->second);
  }

 private:
  const std::string_view file_;
  std::map<std::string, int, std::less<>> lines_;
};

void refuse_repeated_anchors(const std::string& text, std::string_view file) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  Anchors anchors(file);
  parser.HandleNextDocument(anchors);
}

// The parser's message in the words of a person who writes files. Messages not listed here are returned unchanged.
std::string in_words(const std::string& problem) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 15> kProblems{{
      {"illegal tab when looking for indentation", "a tab indents the line; use spaces"},
      {"illegal EOF in scalar", "a quote is not closed before the end of the file"},
      {"illegal document indicator in scalar", "--- or ... is inside quotes"},
      {"end of sequence flow not found", "a [ is not closed with ]"},
      {"end of map flow not found", "a { is not closed with }"},
      {"illegal flow end", "a ] or } closes nothing"},
      {"end of map not found", "the line belongs to no key above it"},
      {"end of sequence not found", "the line belongs to no list entry above it"},
      {"illegal block entry", "a list entry is not allowed here"},
      {"illegal map key", "a key is not allowed here"},
      {"illegal map value", "a colon is not allowed here: no value can follow"},
      {"unknown token", "a value begins with a character that YAML reserves; put it in quotes"},
      {"bad character found while scanning hex number", "an escape \\x, \\u or \\U has no hexadecimal digits"},
      {"the referenced anchor is not defined", "a name after * that no & defines"},
      {"bad file", "values are nested too deeply"},
  }};
  const auto* const found =
      std::ranges::find(kProblems, problem, &std::pair<std::string_view, std::string_view>::first);
  if (found != kProblems.end()) return std::string(found->second);
  constexpr std::string_view kEscape = "unknown escape character: ";
  if (!problem.starts_with(kEscape)) return shown_text(problem);
  return fmt::format("the escape \\{} is not known between double quotes; use single quotes",
                     shown_text(std::string_view(problem).substr(kEscape.size())));
}

// True where a quote opens at `mark` and is open to the end, which the parser takes for its close.
bool is_left_open(std::string_view text, const YAML::Mark& mark) {
  std::size_t at = 0;
  for (int line = 0; line < mark.line; ++line) at = text.find('\n', at) + 1;
  at += static_cast<std::size_t>(mark.column);
  if (at >= text.size() || (text[at] != '"' && text[at] != '\'')) return false;
  const char quote = text[at];
  while (++at < text.size()) {
    const bool escape = quote == '"' ? text[at] == '\\' : text.substr(at).starts_with("''");
    if (escape) {
      ++at;
    } else if (text[at] == quote) {
      return false;
    }
  }
  return true;
}

// yaml-cpp's nodes as Values.
class YamlConverter {
 public:
  // `merges`: << merges mappings, instead of being a key.
  YamlConverter(std::string_view text, std::string_view file, const DocumentWords& words, bool merges)
      : text_(text), file_(file), words_(words), merges_(merges) {}

  Value convert(const YAML::Node& node, const std::string& path, const std::string& key, const Place& place) {
    if (++values_ > kMostValues) config_error("{}: more than {} values; aliases repeat too much", file_, kMostValues);
    if (++level_ > kMostLevels) {
      config_error("{}: {} is nested deeper than {} levels; an alias may be inside the value that it names",
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
  using Lines = std::map<std::string, int, std::less<>>;  // of the keys so far

  static Value::Kind kind_of(const YAML::Node& node) {
    if (node.IsMap()) return Value::Kind::kMapping;
    if (node.IsSequence()) return Value::Kind::kList;
    return node.IsScalar() ? Value::Kind::kScalar : Value::Kind::kNull;
  }

  // "?" and "!" are the parser's tags of plain and of quoted scalars.
  void fill_scalar(const YAML::Node& node, Value& value) const {
    const bool plain = node.Tag() == "?";
    const bool quoted = node.Tag() == "!";
    if (quoted && is_left_open(text_, node.Mark())) {
      refuse(words_.unreadable, fmt::arg("where", value.where()),
             fmt::arg("problem", "the quote that opens here is not closed"));
    }
    value.set_scalar(node.Scalar(),
                     plain    ? Value::Style::kPlain
                     : quoted ? Value::Style::kQuoted
                              : Value::Style::kTagged,
                     plain || quoted ? "" : node.Tag());
  }

  // The parser marks an absent value at the text that follows; the place of its key or list replaces this mark.
  void fill_list(const YAML::Node& node, Value& list) {
    for (std::size_t i = 0; i < node.size(); ++i) {
      const YAML::Node item = node[i];
      const SourceMark mark = item.IsNull() ? list.place().key : mark_at(item.Mark(), file_);
      list.add(convert(item, fmt::format("{}[{}]", list.path(), i), "", {mark, mark}));
    }
  }

  void fill_mapping(const YAML::Node& node, Value& mapping) {
    Lines lines;
    std::vector<YAML::Node> merged;
    for (const auto& pair : node) {
      if (merges_ && pair.first.IsScalar() && pair.first.Tag() == "?" && pair.first.Scalar() == "<<") {
        merged.push_back(pair.second);
        continue;
      }
      const SourceMark key_mark = mark_at(pair.first.Mark(), file_);
      if (!pair.first.IsScalar()) {
        config_error("{}: a key is {}; write key: value lines", key_mark.text(),
                     Value(kind_of(pair.first), "", "", {}).shown());
      }
      const std::string& key = pair.first.Scalar();
      const std::string path = joined(mapping.path(), key);
      const auto [first, fresh] = lines.try_emplace(key, key_mark.line);
      if (!fresh) {
        refuse(words_.repeated, fmt::arg("where", key_mark.text()), fmt::arg("path", path),
               fmt::arg("first", first->second));
      }
      const SourceMark mark = pair.second.IsNull() ? key_mark : mark_at(pair.second.Mark(), file_);
      mapping.add(convert(pair.second, path, key, {key_mark, mark}));
    }
    for (const YAML::Node& other : merged) merge(other, lines, mapping);
  }

  // The value of <<: a mapping, or a list of them. Existing keys stay.
  void merge(const YAML::Node& node, Lines& lines, Value& mapping) {
    const SourceMark mark = mark_at(node.Mark(), file_);
    if (node.IsSequence()) {
      for (const YAML::Node& item : node) merge(item, lines, mapping);
      return;
    }
    if (!node.IsMap()) {
      config_error("{}: << is {}; write an alias of a mapping, or a list of them", mark.text(),
                   Value(kind_of(node), "", "", {}).shown());
    }
    const Value other = convert(node, mapping.path(), "", {mark, mark});
    for (const Value& member : other.items()) {
      if (lines.try_emplace(member.key(), member.place().key.line).second) mapping.add(member);
    }
  }

  const std::string_view text_;
  const std::string_view file_;
  const DocumentWords& words_;
  const bool merges_;
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
           fmt::arg("where", mark_at(error.mark, file).text()), fmt::arg("problem", in_words(error.msg)));
  }
}

// --- JSON

// Reads a text and counts its ends of line.
class LineCounter {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  LineCounter(const char* at, int& line) : at_(at), line_(&line) {}
  reference operator*() const { return *at_; }
  LineCounter& operator++() {
    if (*at_++ == '\n') ++*line_;
    return *this;
  }
  LineCounter operator++(int) {
    LineCounter before = *this;
    ++*this;
    return before;
  }
  bool operator==(const LineCounter& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  int* line_;
};

// nlohmann's events as Values: its own tree would forget how a number was written.
class JsonConverter {
 public:
  using Json = nlohmann::json;

  // `line` is the line of the last character read.
  JsonConverter(std::string_view text, std::string_view file, const int& line)
      : size_(text.size()), file_(escaped(file)), line_(line) {}

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
    const auto [first, fresh] = lines_.back().try_emplace(key, line_);
    key_ = std::move(key);
    if (!fresh) {
      config_error("{}:{}: {} is given again, first at line {}; keep one", file_, line_,
                   joined(open_.back().path(), key_), first->second);
    }
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
    if (++values_ > kMostValues) config_error("{}: more than {} values; give the right file", file_, kMostValues);
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
    lines_.emplace_back();
    return true;
  }
  bool close() {
    Value done = std::move(open_.back());
    open_.pop_back();
    lines_.pop_back();
    return put(std::move(done));
  }

  const std::size_t size_;
  const std::string file_;
  const int& line_;
  Value root_;
  std::vector<Value> open_;
  std::vector<std::map<std::string, int, std::less<>>> lines_;  // of the keys so far, for each mapping that is open
  int values_ = 0;
  std::string key_;
};

}  // namespace

std::string read_text(const std::filesystem::path& path, std::string_view wanted) {
  const std::string name = escaped(path.string());
  const auto fail = [&](int code) { config_error("{}: {}; give the path of {}", name, std::strerror(code), wanted); };
  // Without O_NONBLOCK, opening a pipe would wait for its writer.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0 && errno == ENXIO) config_error("{}: is a socket; give the path of a regular file", name);
  if (file.get() < 0) fail(errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail(errno);
  check_file(status, name);
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t bytes = ::read(file.get(), text.data() + filled, text.size() - filled);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) fail(errno);
    if (bytes == 0) break;  // it has become shorter
    filled += static_cast<std::size_t>(bytes);
  }
  text.resize(filled);
  return text;
}

namespace {

Value value_of(const YAML::Node& document, std::string_view text, std::string_view file_name,
               const DocumentWords& words, bool merges) {
  if (document.IsNull()) refuse(words.empty, fmt::arg("file", file_name));
  const SourceMark mark = mark_at(document.Mark(), file_name);
  if (!document.IsMap()) {
    refuse(words.no_mapping, fmt::arg("where", mark.text()), fmt::arg("file", file_name),
           fmt::arg("kind", document.IsSequence() ? "a list" : "a single value"));
  }
  return YamlConverter(text, file_name, words, merges).convert(document, "", "", {mark, mark});
}

}  // namespace

Value parse_yaml(std::string_view text, std::string_view file_name, const DocumentWords& words) {
  check_utf8(text, file_name);
  // An end of line after the last value lets the parser mark the end of the file, not its beginning.
  const YAML::Node document = load(std::string(text) + "\n", file_name, words);
  return value_of(document, text, file_name, words, /*merges=*/false);
}

Value parse_python_yaml(std::string_view text, std::string_view file_name, const DocumentWords& words) {
  check_utf8(text, file_name);
  const std::string lines = std::string(text) + "\n";
  const YAML::Node document = load(lines, file_name, words);
  refuse_repeated_anchors(lines, file_name);
  return value_of(document, text, file_name, words, /*merges=*/true);
}

Value parse_json(std::string_view text, std::string_view file_name) {
  check_utf8(text, file_name);
  int line = 1;
  JsonConverter converter(text, file_name, line);
  JsonConverter::Json::sax_parse(LineCounter(text.data(), line), LineCounter(text.data() + text.size(), line),
                                 &converter);
  Value value = converter.take();
  if (value.is_mapping()) return value;
  config_error("{}: a JSON object is expected, not {}", file_name, value.is_list() ? "array" : "a single value");
}

}  // namespace loom::config
