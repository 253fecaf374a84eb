#include "engine/text/preprocess/columns.h"

#include <algorithm>
#include <array>
#include <fmt/ranges.h>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/text/preprocess/tool_text.h"
#include "engine/text/tokenizer/json_node.h"

namespace loom::data {
namespace {

struct NamedColumn {
  std::string_view key;
  std::string Columns::*column;
};
struct NamedTag {
  std::string_view key;
  std::string Tags::*tag;
  bool can_be_off = false;
};

const std::vector<NamedColumn>& named_columns() {
  static const std::vector<NamedColumn> all = {
      {"prompt", &Columns::prompt},   {"query", &Columns::query},       {"response", &Columns::response},
      {"history", &Columns::history}, {"messages", &Columns::messages}, {"system", &Columns::system},
      {"tools", &Columns::tools},     {"chosen", &Columns::chosen},     {"rejected", &Columns::rejected}};
  return all;
}

constexpr std::array<NamedTag, 7> kTags = {{{"role_tag", &Tags::role},
                                            {"content_tag", &Tags::content},
                                            {"user_tag", &Tags::user},
                                            {"assistant_tag", &Tags::assistant},
                                            {"observation_tag", &Tags::observation, true},
                                            {"function_tag", &Tags::function, true},
                                            {"system_tag", &Tags::system, true}}};

// Keys of --map-keys that a format has. Handlers of pairs and others take the same keys; what one does not read is
// unused.
struct FormatKeys {
  std::vector<std::string_view> required;
  std::vector<std::string_view> optional;
  std::vector<std::string_view> unused;

  std::vector<std::string_view> all() const {
    std::vector<std::string_view> keys = required;
    keys.insert(keys.end(), optional.begin(), optional.end());
    keys.insert(keys.end(), unused.begin(), unused.end());
    return keys;
  }
};

FormatKeys keys_of(RecordFormat format, bool pairs) {
  const std::vector<std::string_view> pair = {"chosen", "rejected"};
  switch (format) {
    case RecordFormat::kAlpaca: {
      const std::vector<std::string_view> answer = {"response"};
      return {pairs ? pair : answer, {"prompt", "query", "history", "system"}, pairs ? answer : pair};
    }
    case RecordFormat::kSharegpt:
      if (pairs) return {{"messages", "chosen", "rejected"}, {"system", "tools"}, {}};
      return {{"messages"}, {"system", "tools"}, pair};
    case RecordFormat::kOpenAI:
      break;
  }
  return {{"messages"}, {"system", "tools"}, {}};
}

std::string Columns::*column_of(std::string_view key) {
  return std::ranges::find(named_columns(), key, &NamedColumn::key)->column;
}

void read_tags(const JsonNode& node, Tags& tags) {
  node.expect_object();
  for (const auto& [key, value] : node.json().items()) {
    const auto found = std::ranges::find(kTags, key, &NamedTag::key);
    if (found == kTags.end()) {
      std::vector<std::string_view> known;
      for (const NamedTag& tag : kTags) known.push_back(tag.key);
      config_error("{}: {} is no tag; tags are {}", node.where(), shown_text(key), fmt::join(known, ", "));
    }
    const auto given = node.find(key);
    tags.*(found->tag) = given ? given->as_text() : "";
    if ((tags.*(found->tag)).empty() && !found->can_be_off) {
      config_error("{}: {} is empty; messages need it: name it, or leave it out for its default", node.where(), key);
    }
  }
}

void read_column(const JsonNode& map, const std::string& key, const FormatKeys& keys, Columns& columns) {
  const std::vector<std::string_view> known = keys.all();
  if (std::ranges::find(known, key) == known.end()) {
    config_error("{}: {} is no key of this handler; its keys are {}", map.file(), shown_text(key),
                 fmt::join(known, ", "));
  }
  const auto given = map.find(key);
  std::string& column = columns.*column_of(key);
  column = given ? given->as_text() : "";
  if (column.empty() && std::ranges::find(keys.required, key) != keys.required.end()) {
    config_error("{}: {} is switched off, and no sample is without it; name its column", map.file(), key);
  }
}

void use_openai(Columns& columns) {
  columns.messages = "messages";
  columns.tools = "tools";
  columns.tags = {"role", "content", "user", "assistant", "tool", "function_call", "system"};
}

bool has_column(std::span<const Record> records, const std::string& name) {
  return std::ranges::any_of(records, [&](const Record& record) { return record.columns.contains(name); });
}

}  // namespace

Columns columns_of(const HandlerOptions& options, RecordFormat format, bool pairs) {
  Columns columns;
  if (format == RecordFormat::kOpenAI) use_openai(columns);
  if (!options.map_keys) return columns;
  const nlohmann::json json = parse_json_text(*options.map_keys, options.map_keys_place);
  const JsonNode map(json, options.map_keys_place);
  map.expect_object();
  const FormatKeys keys = keys_of(format, pairs);
  for (const auto& [key, value] : json.items()) {
    if (key == "tags" && format == RecordFormat::kSharegpt) {
      read_tags(map.at(key), columns.tags);
    } else {
      read_column(map, key, keys, columns);
    }
  }
  return columns;
}

std::vector<WantedColumn> wanted_columns(const Columns& columns, RecordFormat format, bool pairs) {
  const FormatKeys keys = keys_of(format, pairs);
  std::vector<WantedColumn> wanted;
  const auto add = [&](std::string_view key) {
    const std::string& name = columns.*column_of(key);
    // OpenAI's records have tools or not.
    if (name.empty() || (format == RecordFormat::kOpenAI && key == "tools")) return;
    wanted.push_back({name, std::string(key)});
  };
  std::ranges::for_each(keys.required, add);
  std::ranges::for_each(keys.optional, add);
  return wanted;
}

void check_wanted(std::span<const WantedColumn> wanted, std::span<const Record> records, const std::string& place) {
  if (records.empty()) return;
  for (const WantedColumn& column : wanted) {
    if (has_column(records, column.name)) continue;
    std::vector<std::string> known;
    for (const auto& [name, value] : records.front().columns.items()) known.push_back(shown_text(name));
    config_error(
        "{}: no column '{}' here, nor in the {} records from here on; it is the column for '{}', named by {}; the "
        "columns here are {}",
        records.front().where, shown_text(column.name), records.size(), column.use, place, fmt::join(known, ", "));
  }
}

const RecordJson* value_of(const Record& record, const std::string& column) {
  if (column.empty()) return nullptr;
  const auto found = record.columns.find(column);
  return found == record.columns.end() || found->is_null() ? nullptr : &*found;
}

std::string text_of(const Record& record, const std::string& column) {
  const RecordJson* value = value_of(record, column);
  if (value == nullptr) return "";
  if (!value->is_string()) refuse_value(record, "column '" + shown_text(column) + "'", *value, "use a text");
  return value->get<std::string>();
}

void refuse_value(const Record& record, const std::string& place, const RecordJson& value, std::string_view message) {
  const bool whole = !value.is_structured();
  config_error("{}: {} is {}; {}", record.where, place,
               whole              ? shown_text(python_json(value))
               : value.is_array() ? "a list"
                                  : "an object",
               message);
}

}  // namespace loom::data
