// Promise: docs/fsdp2-config.md has every key the reader knows and no other, with defaults that read as written; the
//          files in configs/fsdp2 are fit for use.
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <regex>
#include <set>

#include "sharding/config/fsdp2_keys.h"

namespace loom::sharding {
namespace {

const std::filesystem::path kSourceDir = LOOM_SOURCE_DIR;

// key -> default, of the page's table.
std::map<std::string, std::string> documented() {
  std::ifstream page(kSourceDir / "docs/fsdp2-config.md");
  std::map<std::string, std::string> rows;
  const std::regex row("^\\| `([a-z0-9_]+)` \\| `([^`]*)` \\|.*");
  std::string line;
  for (std::smatch match; std::getline(page, line);) {
    if (std::regex_match(line, match, row)) rows[match[1]] = match[2];
  }
  return rows;
}

TEST(Fsdp2Page, HasEveryKeyAndNoOther) {
  std::set<std::string> keys;
  for (const auto& [key, value] : documented()) keys.insert(key);
  std::set<std::string> known;
  for (const Fsdp2Key& key : fsdp2_keys()) known.emplace(key.name);
  EXPECT_EQ(keys, known);
  EXPECT_EQ(keys.size(), 46u);
}

// A file that writes the default is laid out as a file that leaves the key out.
TEST(Fsdp2Page, DefaultsReadAsWritten) {
  const WorldLayout bare = validate_against_world(parse_fsdp2_config("use_reentrant: true", "f.yaml"), 4);
  for (const auto& [key, value] : documented()) {
    const Fsdp2Config config = parse_fsdp2_config(key + ": " + value, "f.yaml");
    for (const Fsdp2Key& row : fsdp2_keys()) EXPECT_EQ(row.write(config), row.write(Fsdp2Config{})) << key;
    EXPECT_EQ(validate_against_world(config, 4).shard, bare.shard) << key;
  }
}

TEST(ShippedFiles, AreFitForEightRanks) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kSourceDir / "configs/fsdp2")) {
    const Fsdp2Config config = load_fsdp2_config(entry.path());
    EXPECT_EQ(validate_against_world(config, 8).shard, 8) << entry.path();
    ++files;
  }
  EXPECT_EQ(files, 9);
}

}  // namespace
}  // namespace loom::sharding
