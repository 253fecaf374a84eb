// What a search chose as the text of fsdp2_config.yaml, and the command that trains with it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sharding/config/fsdp2_config.h"

namespace loom::plan {

// A line for each key that is not at its default, and for sharding_size. Precondition: no modules are recomputed or
// swapped by path, for which there is no key. InvariantError if the text does not read as the same values.
std::string file_text(const sharding::Fsdp2Config& config);

// The words as bash reads them, in one line.
std::string command_line(const std::vector<std::string>& command);

// The answer of --write-config.
struct WrittenConfig {
  std::filesystem::path path;
  std::optional<std::size_t> row;    // of the sweep; none: found by --fit
  std::vector<std::string> command;  // words, the program first
};

std::string to_text(const WrittenConfig& written);
nlohmann::ordered_json to_json(const WrittenConfig& written);

}  // namespace loom::plan
