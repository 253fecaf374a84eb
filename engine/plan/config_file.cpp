#include "engine/plan/config_file.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/core/spelling.h"
#include "engine/core/wrapped.h"
#include "sharding/config/fsdp2_keys.h"

namespace loom::plan {
namespace {

using Words = std::vector<std::string>;

// In lines of at most kTextColumns, as far as its words are shorter, each but the last with a backslash at its end.
std::string lines_of(const Words& command) {
  std::string text, line = "  ";
  for (const std::string& word : command) {
    const std::string next = shell_word(word);
    if (line.size() + next.size() + 3 > kTextColumns) {
      text += line + "\\\n";
      line = "    ";
    }
    line += next + " ";
  }
  line.back() = '\n';
  return text + line;
}

}  // namespace

std::string file_text(const sharding::Fsdp2Config& config) {
  require(config.recompute_by_path.empty() && config.swap_by_path.empty(), "modules by path have no key");
  std::string text;
  for (const sharding::Fsdp2Key& key : sharding::fsdp2_keys()) {
    if (sharding::same_value(key, config, {}) && key.name != "sharding_size") continue;
    text += fmt::format("{}: {}\n", key.name, key.write(config));
  }
  const sharding::Fsdp2Config read = sharding::parse_fsdp2_config(text, "the written configuration");
  require(sharding::same_values(read, config), "a written configuration reads otherwise:\n{}", text);
  return text;
}

std::string command_line(const Words& command) {
  std::string line;
  for (const std::string& word : command) line += (line.empty() ? "" : " ") + shell_word(word);
  return line;
}

std::string to_text(const WrittenConfig& written) {
  const std::string what = written.row ? fmt::format("row {} of the sweep", *written.row) : "what was found";
  return wrapped(fmt::format("{} has the configuration of {}; to train with it:\n", written.path.string(), what), 4) +
         lines_of(written.command);
}

nlohmann::ordered_json to_json(const WrittenConfig& written) {
  nlohmann::ordered_json json{{"file", written.path.string()}, {"row", nullptr}, {"command", written.command}};
  if (written.row) json["row"] = *written.row;
  return json;
}

}  // namespace loom::plan
