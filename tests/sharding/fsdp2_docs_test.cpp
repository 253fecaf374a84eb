// Promise: docs/fsdp2-config.md has every key the reader knows and no other, with defaults that read as written; the
//          files in configs/fsdp2 are fit for use.
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <regex>
#include <set>

#include "engine/core/error.h"
#include "sharding/config/fsdp2_config.h"

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

// The reader lists its keys when it is given one that resembles none.
std::set<std::string> known_keys() {
  try {
    parse_fsdp2_config("qqqqqqqqqqqqqqqqqqqq: 1", "f.yaml");
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    std::set<std::string> keys;
    const std::regex word("[a-z][a-z0-9_]+");
    const std::string list = text.substr(text.find("the keys are ") + 13);
    for (std::sregex_iterator it(list.begin(), list.end(), word), end; it != end; ++it) keys.insert(it->str());
    return keys;
  }
  return {};
}

TEST(Fsdp2Page, HasEveryKeyAndNoOther) {
  std::set<std::string> keys;
  for (const auto& [key, value] : documented()) keys.insert(key);
  EXPECT_EQ(keys, known_keys());
  EXPECT_EQ(keys.size(), 18u);
}

// A file that writes the default is laid out as a file that leaves the key out.
TEST(Fsdp2Page, DefaultsReadAsWritten) {
  const WorldLayout bare = validate_against_world(parse_fsdp2_config("use_reentrant: true", "f.yaml"), 4);
  for (const auto& [key, value] : documented()) {
    const Fsdp2Config config = parse_fsdp2_config(key + ": " + value, "f.yaml");
    const Fsdp2Config plain;
    EXPECT_EQ(config.sharding_size, plain.sharding_size) << key;
    EXPECT_EQ(config.param_dtype, plain.param_dtype) << key;
    EXPECT_EQ(config.reduce_dtype, plain.reduce_dtype) << key;
    EXPECT_EQ(config.output_dtype, plain.output_dtype) << key;
    EXPECT_EQ(config.cast_forward_inputs, plain.cast_forward_inputs) << key;
    EXPECT_EQ(config.use_reentrant, plain.use_reentrant) << key;
    EXPECT_EQ(config.reshard_after_forward, plain.reshard_after_forward) << key;
    EXPECT_EQ(config.offload_to_cpu, plain.offload_to_cpu) << key;
    EXPECT_EQ(config.pin_memory, plain.pin_memory) << key;
    EXPECT_EQ(config.num_to_forward_prefetch, plain.num_to_forward_prefetch) << key;
    EXPECT_EQ(config.num_to_backward_prefetch, plain.num_to_backward_prefetch) << key;
    EXPECT_EQ(config.align_fsdp_param_groups, plain.align_fsdp_param_groups) << key;
    EXPECT_EQ(config.expert_parallel_size, plain.expert_parallel_size) << key;
    EXPECT_EQ(config.reshard_local_experts, plain.reshard_local_experts) << key;
    EXPECT_TRUE(config.sub_modules_to_wrap.empty() && config.ignored_modules.empty() &&
                config.recompute_modules.empty() && config.moe_modules.empty())
        << key;
    EXPECT_EQ(validate_against_world(config, 4).shard, bare.shard) << key;
  }
}

TEST(ShippedFiles, AreFitForEightRanks) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kSourceDir / "configs/fsdp2")) {
    const Fsdp2Config config = load_fsdp2_config(entry.path());
    EXPECT_NO_THROW(reject_not_built(config)) << entry.path();
    EXPECT_EQ(validate_against_world(config, 8).shard, 8) << entry.path();
    ++files;
  }
  EXPECT_EQ(files, 7);
}

}  // namespace
}  // namespace loom::sharding
