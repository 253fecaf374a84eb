#include "engine/text/tokenizer/json_node.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/io/json_text.h"
#include "engine/io/mapped_file.h"

namespace loom::data {
namespace {

using Json = nlohmann::json;

std::string shown(const Json& json) {
  if (json.is_object()) return "an object";
  if (json.is_array()) return "a list";
  return shown_text(json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace

Json parse_json_text(std::string_view text, const std::string& file) {
  if (text.size() > kMostJsonBytes) {
    config_error("{}: the file has {} bytes; at most {} are read", file, text.size(), kMostJsonBytes);
  }
  return io::parse_json(text, file);
}

Json parse_json_file(const std::filesystem::path& path) {
  const io::MappedFile file(path);
  const auto bytes = file.bytes();
  return parse_json_text({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

std::string JsonNode::path_of(std::string_view key) const {
  const std::string name = shown_text(key);
  return path_.empty() ? name : path_ + "." + name;
}

std::string JsonNode::where() const { return *file_ + ": " + (path_.empty() ? "the document" : path_); }

void JsonNode::refuse_with(const std::string& message) const {
  config_error("{} is {}; {}", where(), shown(*json_), message);
}

void JsonNode::expect_object() const {
  if (!is_object()) refuse("use an object");
}

std::optional<JsonNode> JsonNode::find(std::string_view key) const {
  expect_object();
  const auto found = json_->find(key);
  if (found == json_->end() || found->is_null()) return std::nullopt;
  return JsonNode(*found, *file_, path_of(key));
}

JsonNode JsonNode::at(std::string_view key) const {
  if (auto node = find(key)) return *node;
  config_error("{}: {} is missing; write it", *file_, path_of(key));
}

std::string JsonNode::type() const { return text("type"); }

std::string JsonNode::text(std::string_view key) const { return at(key).as_text(); }

bool JsonNode::flag(std::string_view key, bool fallback) const {
  const auto node = find(key);
  return node ? node->as_flag() : fallback;
}

void JsonNode::allow_only(std::initializer_list<std::string_view> keys) const {
  expect_object();
  for (const auto& [key, value] : json_->items()) {
    if (std::ranges::find(keys, std::string_view(key)) != keys.end()) continue;
    config_error("{}: {} is not read by Shardloom; the keys here are {}", *file_, path_of(key), fmt::join(keys, ", "));
  }
}

const std::string& JsonNode::as_text() const {
  if (!is_text()) refuse("use a text");
  return json_->get_ref<const std::string&>();
}

bool JsonNode::as_flag() const {
  if (!json_->is_boolean()) refuse("use true or false");
  return json_->get<bool>();
}

std::int64_t JsonNode::as_integer(std::int64_t least, std::int64_t most) const {
  const bool above = json_->is_number_unsigned() && json_->get<std::uint64_t>() > static_cast<std::uint64_t>(most);
  if (!json_->is_number_integer() || above || json_->get<std::int64_t>() < least || json_->get<std::int64_t>() > most) {
    refuse("use a whole number from {} to {}", least, most);
  }
  return json_->get<std::int64_t>();
}

std::vector<JsonNode> JsonNode::as_list() const {
  if (!is_list()) refuse("use a list");
  std::vector<JsonNode> nodes;
  nodes.reserve(json_->size());
  for (std::size_t i = 0; i < json_->size(); ++i) {
    nodes.push_back(JsonNode((*json_)[i], *file_, fmt::format("{}[{}]", path_, i)));
  }
  return nodes;
}

}  // namespace loom::data
