#include "engine/text/records/json_record.h"

#include "engine/core/error.h"
#include "engine/io/json_text.h"
#include "engine/text/records/record_file.h"

namespace loom::data {
namespace {

std::string_view kind_of(const nlohmann::ordered_json& json) {
  if (json.is_array()) return "a list";
  if (json.is_string()) return "a text";
  return json.is_number() ? "a number" : json.is_boolean() ? "a boolean" : "null";
}

// Brackets that a text leaves open: an object that goes on in the next line.
bool is_unfinished(std::string_view text) {
  constexpr int kMostLevels = 64;  // of the parser
  int open = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (quoted && text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      quoted = !quoted;
    } else if (!quoted) {
      open += (text[i] == '{' || text[i] == '[') - (text[i] == '}' || text[i] == ']');
      if (open > kMostLevels) return false;
    }
  }
  return open > 0 && text.starts_with('{');
}

}  // namespace

Record json_record(std::string_view text, const std::string& file, std::uint64_t line) {
  const std::string where = line_place(file, line);
  try {
    Record record{io::parse_ordered_json(text, where), where};
    if (record.columns.is_object()) return record;
    config_error(
        "{}: a record is an object, this is {}; write one object a line, or one list of objects in a .json file", where,
        kind_of(record.columns));
  } catch (const ConfigError&) {
    check_utf8(text, file, line);
    if (!is_unfinished(text)) throw;
    config_error(
        "{}: the object does not end on its line; write one object a line, or one list of objects in a .json file "
        "(one object whose fields are columns is not read)",
        where);
  }
}

}  // namespace loom::data
