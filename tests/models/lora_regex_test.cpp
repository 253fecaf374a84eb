// Promise: target modules and patterns of ranks that are regular expressions mean what peft's mean, and one that costs
//          too much is refused. Compiled with LOOM_TEXT, which has regular expressions.
// World:   decoders of two layers.
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "models/hub/model_hub.h"
#include "models/lora/lora.h"
#include "tests/models/test_rank.h"
#include "tests/support/files.h"

namespace loom::models {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kQwen2 =
    R"({"model_type": "qwen2", "vocab_size": 32, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 16,
        "tie_word_embeddings": false})";

std::shared_ptr<nn::Module> model_of(const char* config) {
  return ModelHub::global().build(ConfigReader::from_json(config, "config.json"));
}

LoraOptions on(std::vector<std::string> targets) {
  LoraOptions options;
  options.r = 4;
  options.alpha = 8;
  options.target_modules = std::move(targets);
  options.where = "--lora-target-modules";
  return options;
}

std::vector<std::string> adapted(const char* config, LoraOptions options) {
  return add_lora(*model_of(config), std::move(options))->adapted;
}

std::string refusal(const char* config, const LoraOptions& options) {
  return test::message_of<ConfigError>([&] { add_lora(*model_of(config), options); });
}

TEST(LoraTargets, ARegexIsOfTheWholePath) {
  test::TestRank rank;
  LoraOptions options = on({});
  options.target_regex = R"(.*\.1\.self_attn\.(q|v)_proj)";
  EXPECT_THAT(adapted(kQwen2, options),
              ElementsAre("model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.v_proj"));
  options.target_regex = "q_proj";
  EXPECT_THAT(refusal(kQwen2, options), HasSubstr("the target modules q_proj match no module"));
  options.target_regex = "(";
  EXPECT_THAT(refusal(kQwen2, options),
              HasSubstr("the regex of the target modules is '(', which is no regular expression: end pattern with "
                        "unmatched parenthesis; correct it"));
  options.target_regex = "([a-z_.0-9]+)+!";
  EXPECT_THAT(
      refusal(kQwen2, options),
      AllOf(HasSubstr("the regex of the target modules is '([a-z_.0-9]+)+!', which takes too much work on 'model."),
            HasSubstr("; simplify the pattern")));
  options.target_regex = std::string(100'000, '(');
  EXPECT_THAT(refusal(kQwen2, options), HasSubstr("has 100000 bytes; a pattern may have 8192"));
  // What ms-swift writes for models with images.
  options.target_regex = R"(^(?!.*mlp)(?P<layers>model\.layers).*\.(?:q_proj|up_proj)$)";
  EXPECT_THAT(adapted(kQwen2, options),
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
  LoraOptions options = on({"all-linear"});
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
