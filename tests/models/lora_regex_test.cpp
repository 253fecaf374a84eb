// Promise: target modules and patterns of ranks that are regular expressions mean what peft's mean, and one that costs
//          too much is refused. Compiled with LOOM_TEXT, which has regular expressions.
// World:   decoders of two layers.
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "tests/models/lora_models.h"
#include "tests/models/test_rank.h"
#include "tests/support/files.h"

namespace loom::models {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(LoraTargets, ARegexIsOfTheWholePath) {
  test::TestRank rank;
  LoraOptions options = lora_on({});
  options.target_regex = R"(.*\.1\.self_attn\.(q|v)_proj)";
  EXPECT_THAT(lora_adapted(kTinyQwen2, options),
              ElementsAre("model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.v_proj"));
  options.target_regex = "q_proj";
  EXPECT_THAT(lora_refusal(kTinyQwen2, options), HasSubstr("the target modules q_proj match no module"));
  options.target_regex = "(";
  EXPECT_THAT(lora_refusal(kTinyQwen2, options),
              HasSubstr("the regex of the target modules is '(', which is no regular expression: end pattern with "
                        "unmatched parenthesis; correct it"));
  options.target_regex = "([a-z_.0-9]+)+!";
  EXPECT_THAT(
      lora_refusal(kTinyQwen2, options),
      AllOf(HasSubstr("the regex of the target modules is '([a-z_.0-9]+)+!', which takes too much work on 'model."),
            HasSubstr("; simplify the pattern")));
  options.target_regex = std::string(100'000, '(');
  EXPECT_THAT(lora_refusal(kTinyQwen2, options), HasSubstr("has 100000 bytes; a pattern may have 8192"));
  // What ms-swift writes for models with images.
  options.target_regex = R"(^(?!.*mlp)(?P<layers>model\.layers).*\.(?:q_proj|up_proj)$)";
  EXPECT_THAT(lora_adapted(kTinyQwen2, options),
              ElementsAre("model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj"));
}

TEST(LoraTargets, PatternsOfRanksAreBounded) {
  LoraOptions options;
  options.where = "adapter_config.json";
  options.rank_pattern = {{"([a-z_.0-9]+)+!", 3}};
  EXPECT_THAT(
      test::message_of<ConfigError>([&] { options.rank_of("model.layers.0.self_attn.q_proj"); }),
      StartsWith("adapter_config.json: a key of rank_pattern or alpha_pattern is '([a-z_.0-9]+)+!', which takes "
                 "too much work on 'model.layers.0.self_attn.q_proj'"));
  options.rank_pattern = {{"^model.layers.1", 5}, {"q_proj", 7}};
  EXPECT_EQ(options.rank_of("model.layers.0.self_attn.q_proj"), 7);
  EXPECT_EQ(options.rank_of("model.layers.1"), 5);
  EXPECT_EQ(options.rank_of("tower.model.layers.1"), options.r);
}

TEST(LoraTargets, PatternsGiveModulesTheirOwnRankAndScale) {
  LoraOptions options = lora_on({"all-linear"});
  options.rank_pattern = {{"down_proj", 16}};
  options.alpha_pattern = {{"layers.1.*.q_proj", 2}};
  EXPECT_EQ(options.rank_of("model.layers.0.mlp.down_proj"), 16);
  EXPECT_EQ(options.scale_of("model.layers.0.mlp.down_proj"), 0.5);
  EXPECT_EQ(options.scale_of("model.layers.1.self_attn.q_proj"), 0.5);
  EXPECT_EQ(options.scale_of("model.layers.0.self_attn.q_proj"), 2.0);
  options.use_rslora = true;
  EXPECT_EQ(options.scale_of("model.layers.0.self_attn.q_proj"), 4.0);
}

}  // namespace
}  // namespace loom::models
