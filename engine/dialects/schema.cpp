#include "engine/dialects/schema.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/dialects/flags_of_file.h"
#include "engine/dialects/row.h"
#include "engine/job/key.h"
#include "sharding/config/fsdp2_keys.h"

namespace loom::dialects {
namespace {

using Json = nlohmann::ordered_json;

// Tools convert texts to numbers, and take null for "not given".
Json type_of(std::initializer_list<const char*> names) {
  Json types = Json::array();
  for (const char* name : names) types.push_back(name);
  types.push_back("null");
  return {{"type", types}};
}

Json type_of(const job::Key& key) {
  switch (key.kind) {
    case job::Kind::kToggle:
      return type_of({"boolean"});
    case job::Kind::kWhole:
      return type_of({"integer", "string"});
    case job::Kind::kReal:
      return type_of({"number", "string"});
    case job::Kind::kNumbers:
      return type_of({"array", "integer", "string"});
    case job::Kind::kTexts:
      return type_of({"array", "string"});
    case job::Kind::kChoice:
    case job::Kind::kText:
      return type_of({"string", "number"});
  }
  return Json::object();
}

Json type_of_default(std::string_view fallback) {
  if (fallback == "true" || fallback == "false") return type_of({"boolean", "string"});
  if (fallback.starts_with('[')) return type_of({"array", "string"});
  if (parse_number<double>(fallback)) return type_of({"number", "string"});
  return Json::object();
}

Json schema_of_row(const Row& row) {
  const bool is_free = row.act == Act::kFlag && row.words.empty();
  Json schema = is_free ? type_of(*job::find_key(row.target)) : type_of_default(row.fallback);
  std::string about;
  if (row.act == Act::kFlag || row.act == Act::kFlat) about = row.target;
  if (row.act == Act::kDerived) about = row.target;
  if (row.act == Act::kUnused) about = "without effect in Shardloom";
  if (row.act == Act::kListed) about = "of a class or data set that Shardloom has not";
  if (row.act == Act::kRefused) about = fmt::format("another value than {} is refused: {}", row.fallback, row.text);
  if (!about.empty()) schema["description"] = about;
  return schema;
}

void put(Json& schema, std::string_view key, const Row& row) {
  const std::size_t dot = key.find('.');
  const std::string name(key.substr(0, dot));
  if (name == "*") {
    schema["additionalProperties"] = true;
    return;
  }
  Json& member = schema["properties"][name];
  if (dot == std::string_view::npos) {
    member = schema_of_row(row);
    return;
  }
  if (member.is_null())
    member = {
        {"type", Json::array({"object", "null"})}, {"properties", Json::object()}, {"additionalProperties", false}};
  put(member, key.substr(dot + 1), row);
}

Json flags_schema() {
  Json properties = Json::object();
  for (const auto* table : {&job::keys(), &job::foreign_keys()}) {
    for (const job::Key& key : *table) {
      properties[key_of(key.name())] = type_of(key);
      if (!key.about.empty()) properties[key_of(key.name())]["description"] = key.about;
    }
  }
  return properties;
}

constexpr const char* kFlags = "#/definitions/flags";

Json properties_of(Dialect dialect) {
  Json properties = flags_schema();
  if (dialect == Dialect::kGptArgs) {
    return {{"MM_TOOL_PATH", Json::object()}, {"lora_args", {{"$ref", kFlags}}}, {"gpt_args", {{"$ref", kFlags}}}};
  }
  for (const sharding::Fsdp2Key& key : sharding::fsdp2_keys()) properties[std::string(key.name)] = Json::object();
  return properties;
}

}  // namespace

std::string schema_of(Dialect dialect) {
  if (dialect == Dialect::kTorchtitan) config_error("torchtitan has no files, and therefore no schema");
  Json schema = {{"$schema", "http://json-schema.org/draft-07/schema#"},
                 {"title", title_of(dialect)},
                 {"type", "object"},
                 {"properties", Json::object()},
                 {"additionalProperties", false}};
  if (const Table* table = table_of(dialect)) {
    for (const Row& row : table->rows) put(schema, row.key, row);
  } else {
    schema["properties"] = properties_of(dialect);
  }
  if (dialect == Dialect::kGptArgs) {  // groups of flags may have any name
    schema["definitions"]["flags"] = {
        {"type", "object"}, {"properties", flags_schema()}, {"additionalProperties", {{"$ref", kFlags}}}};
  }
  // Mappings at the top that hold anchors.
  const bool has_holders = dialect == Dialect::kNative || dialect == Dialect::kGptArgs;
  if (has_holders) schema["additionalProperties"] = {{"type", "object"}};
  return schema.dump(2) + "\n";
}

}  // namespace loom::dialects
