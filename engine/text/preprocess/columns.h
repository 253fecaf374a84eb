// Columns: the roles of the columns and tags of records, from --map-keys. Private to engine/text.
//
// Formats   alpaca: instruction, input, output. sharegpt: a list of messages with tags. openai: messages with OpenAI's
//           roles.
// Names     an empty name switches a column off. Columns that --map-keys does not name keep their defaults.
// Errors    ConfigError with the place of the map and the key.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/preprocess/options.h"
#include "engine/text/records/record.h"

namespace loom::data {

enum class RecordFormat : std::uint8_t { kAlpaca, kSharegpt, kOpenAI };

struct Tags {
  std::string role = "from";
  std::string content = "value";
  std::string user = "human";
  std::string assistant = "gpt";
  std::string observation = "observation";
  std::string function = "function_call";
  std::string system = "system";
};

struct Columns {
  std::string prompt = "instruction";
  std::string query = "input";
  std::string response = "output";
  std::string history = {};
  std::string messages = "conversations";
  std::string system = {};
  std::string tools = {};
  std::string chosen = "chosen";
  std::string rejected = "rejected";
  Tags tags = {};
};

// `pairs`: records have chosen and rejected answers.
Columns columns_of(const HandlerOptions& options, RecordFormat format, bool pairs);

// A column that records must have, and its role: "query".
struct WantedColumn {
  std::string name;
  std::string use;
};

// The columns of a format that are switched on.
std::vector<WantedColumn> wanted_columns(const Columns& columns, RecordFormat format, bool pairs);

// Throws for a column that no record has. `place`: where columns are named.
void check_wanted(std::span<const WantedColumn> wanted, std::span<const Record> records, const std::string& place);

// --- a column of a record ---

using RecordJson = nlohmann::ordered_json;

// Nothing for an empty name, and for null.
const RecordJson* value_of(const Record& record, const std::string& column);
// Empty for nothing. ConfigError for any other type than text.
std::string text_of(const Record& record, const std::string& column);
// Throws "WHERE: PLACE is VALUE; MESSAGE".
[[noreturn]] void refuse_value(const Record& record, const std::string& place, const RecordJson& value,
                               std::string_view message);

}  // namespace loom::data
