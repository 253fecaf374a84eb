// The text of one JSON object as a record. Private to engine/text.
#pragma once

#include <string>
#include <string_view>

#include "engine/text/records/record.h"

namespace loom::data {

// ConfigError, with file and line, unless `text` is an object in UTF-8.
Record json_record(std::string_view text, const std::string& file, std::uint64_t line);

}  // namespace loom::data
