// Promise: lint finds in a file, without training, keys that are refused, useless or missing, sizes that do not fit the
//          ranks, and patterns that match nothing; each with its place and rule. The schema has every key.
// World:   files; Qwen3 with two layers.
#include "engine/dialects/lint.h"

#include <nlohmann/json.hpp>

#include "engine/dialects/row.h"
#include "engine/dialects/schema.h"
#include "tests/dialects/models.h"
#include "tests/dialects/translated.h"

namespace loom::dialects {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// "LINE:COLUMN LEVEL RULE TEXT", a finding each.
std::vector<std::string> findings(const std::string& text, const Asked& asked = {.world = 0}) {
  const auto path = test::write_file(std::filesystem::path(::testing::TempDir()) / "shardloom_lint" / "f.yaml", text);
  std::vector<std::string> lines;
  for (const Finding& finding : lint(path, {}, context_of(asked)).findings) {
    EXPECT_EQ(finding.file, path.string());
    lines.push_back(fmt::format("{}:{} {} {} {}", finding.line, finding.column, word_of(finding.level), finding.rule,
                                finding.text));
  }
  return lines;
}

TEST(Lint, AGoodFileHasNoFinding) {
  EXPECT_THAT(
      findings("sharding_size: auto\nsub_modules_to_wrap: [\"model.layers.{*}\"]\nnum_to_forward_prefetch: 1\n"),
      IsEmpty());
}

TEST(Lint, KeysAreFoundWithTheirPlace) {
  const auto found = findings("training:\n  lrr: 1\n  use_deter_comp: true\ntools: {}\n");
  EXPECT_THAT(found, Contains("2:3 error refused-key unknown key 'training.lrr'; did you mean training.lr?"));
  EXPECT_THAT(found, Contains("0:0 note key-without-effect training.use_deter_comp"));
  EXPECT_THAT(findings("gpt_args: {lr: 1}\n"), Contains("0:0 warning missing-key MM_TOOL_PATH: its tool needs it"));
}

TEST(Lint, SizesAreHeldAgainstTheRanks) {
  EXPECT_THAT(findings("sharding_size: 3\n", {.world = 8}),
              Contains(HasSubstr("1:16 error size-does-not-fit sharding_size is 3")));
  EXPECT_THAT(findings("sharding_size: 3\n"), IsEmpty());
}

TEST(Lint, PatternsAreHeldAgainstTheModel) {
  const Asked asked{.world = 0, .flags = {{"--model-config", qwen3_folder().string()}}};
  EXPECT_THAT(findings("sub_modules_to_wrap: [\"model.layer.{*}\"]\n", asked),
              Contains(HasSubstr("1:23 error pattern-matches-nothing sub_modules_to_wrap: 'model.layer.{*}'")));
  EXPECT_THAT(findings("sub_modules_to_wrap: [\"model.layers.{*}\", Qwen3MLP]\n", asked), IsEmpty());
}

TEST(Lint, PrefetchWithoutAnythingToGatherIsSaid) {
  EXPECT_THAT(findings("num_to_forward_prefetch: 1\n"), Contains(HasSubstr("warning prefetch-without-effect")));
  EXPECT_THAT(findings("sub_modules_to_wrap: [lm_head]\nreshard_after_forward: false\nnum_to_backward_prefetch: 2\n"),
              Contains("3:1 warning prefetch-without-effect num_to_backward_prefetch prefetches nothing: with "
                       "reshard_after_forward: false nothing is gathered in backward"));
}

TEST(Lint, AFileThatCannotBeReadIsAFinding) {
  EXPECT_THAT(findings("training: [\n"), Contains(HasSubstr("error unreadable")));
  EXPECT_THAT(findings("a: 1\na: 2\n"), Contains(HasSubstr("2:1 error unreadable a is given again, first at line 1")));
}

TEST(Schema, HasEveryKeyOfItsTable) {
  for (const Dialect dialect : kDialects) {
    if (dialect == Dialect::kTorchtitan) continue;
    const auto schema = nlohmann::json::parse(schema_of(dialect));
    EXPECT_EQ(schema.at("$schema"), "http://json-schema.org/draft-07/schema#");
    const Table* table = table_of(dialect);
    if (table == nullptr) continue;
    for (const Row& row : table->rows) {
      const nlohmann::json* at = &schema;
      std::string key(row.key);
      for (std::size_t begin = 0; begin <= key.size();) {
        const std::size_t end = std::min(key.find('.', begin), key.size());
        const std::string name = key.substr(begin, end - begin);
        begin = end + 1;
        if (name == "*") {
          EXPECT_EQ(at->at("additionalProperties"), true) << row.key;
          break;
        }
        ASSERT_TRUE(at->at("properties").contains(name)) << row.key;
        at = &at->at("properties").at(name);
      }
    }
  }
  const auto flat = nlohmann::json::parse(schema_of(Dialect::kFlat));
  EXPECT_TRUE(flat.at("properties").contains("sharding_size"));
  EXPECT_TRUE(flat.at("properties").contains("micro_batch_size"));
}

}  // namespace
}  // namespace loom::dialects
