// Flags of all conversions of weights. Private to engine/cli.
//
// Errors   ConfigError with flag, value and allowed values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "engine/cli/words/flags.h"
#include "engine/core/dtype.h"

namespace loom::cli {

// `names`: "--dtype", with aliases behind commas.
void add_dtype(Flags& flags, const std::string& names, std::optional<DType>& dtype);

// --config FILE, which was taken out of the words before the parse.
void add_config_flag(Flags& flags);

// Bytes of --shard-size: "5000000000", "5GB", "200MiB".
std::uint64_t parse_size(const std::string& text);

// Refuses an empty path: "convert COMMAND: FLAG is missing; give WHAT".
void need(const std::filesystem::path& value, const char* command, const char* flag, const char* what);

}  // namespace loom::cli
