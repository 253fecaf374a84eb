// Promise: scaled rotary frequencies are those of transformers; a configuration says them in two spellings, and what
//          cannot be a scaling is refused at its key.
// World:   the values are what transformers 5.23 computes in fp32.
#include "models/decoder/rotary_scaling.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/nn/init.h"
#include "engine/tensor/autograd.h"
#include "models/decoder/decoder.h"
#include "models/decoder/decoder_parts.h"
#include "models/generation/session.h"
#include "tests/models/test_rank.h"
#include "tests/support/files.h"

namespace loom::models {
namespace {

using Json = nlohmann::ordered_json;

std::vector<double> rising(double step) {
  std::vector<double> values;
  for (int j = 0; j < 48; ++j) values.push_back(1 + step * j);
  return values;
}

struct Case {
  std::string name;
  Rotary rotary;
  std::int64_t length;
  double factor;  // of cosines and sines
  std::map<std::size_t, double> frequencies;
};

std::vector<Case> cases() {
  const RotaryScaling llama3{.type = RopeType::kLlama3,
                             .factor = 8,
                             .original_max_position_embeddings = 8192,
                             .low_freq_factor = 1,
                             .high_freq_factor = 4};
  const auto yarn = [](double factor, std::int64_t original) {
    return RotaryScaling{.type = RopeType::kYarn, .factor = factor, .original_max_position_embeddings = original};
  };
  RotaryScaling deepseek = yarn(40, 4096), oss = yarn(32, 4096);
  deepseek.mscale = 0.707, deepseek.mscale_all_dim = 1;
  oss.truncate = false;
  const RotaryScaling longrope{.type = RopeType::kLongRope,
                               .factor = 32,
                               .original_max_position_embeddings = 4096,
                               .short_factor = rising(0.05),
                               .long_factor = rising(0.5)};
  return {
      {"llama3",
       {128, 131072, 5e5, llama3},
       8192,
       1,
       {{0, 1}, {16, 0.0376060307}, {32, 0.000524846022}, {48, 6.64786967e-06}, {63, 3.06892588e-07}}},
      {"dynamic",
       {128, 4096, 1e4, {.type = RopeType::kDynamic, .factor = 2}},
       8192,
       1,
       {{16, 0.0756530315}, {32, 0.00572338188}, {63, 3.84927334e-05}}},
      {"yarn",
       {128, 32768, 1e6, yarn(4, 32768)},
       100,
       1.13862944,
       {{16, 0.0316227786}, {32, 0.000602941145}, {63, 3.10234441e-07}}},
      {"yarn with mscale",
       {64, 163840, 1e4, deepseek},
       100,
       0.921042355,
       {{8, 0.100000001}, {16, 0.00550000044}, {31, 3.33380353e-06}}},
      {"yarn without truncation",
       {64, 131072, 1.5e5, oss},
       100,
       1.34657359,
       {{8, 0.0508132726}, {16, 0.000456483918}, {31, 3.0235114e-07}}},
      {"longrope, short", {96, 131072, 1e4, longrope}, 4096, 1.19023807, {{12, 0.0625}, {47, 3.61650018e-05}}},
      {"longrope, long", {96, 131072, 1e4, longrope}, 4097, 1.19023807, {{12, 0.0142857144}, {47, 4.94501046e-06}}},
  };
}

TEST(RotaryScaling, HasTheFrequenciesOfTransformers) {
  for (const Case& c : cases()) {
    const auto found = rotary_frequencies(c.rotary, frequency_length(c.rotary, 0, c.length));
    ASSERT_EQ(std::ssize(found), c.rotary.head_dim / 2) << c.name;
    for (const auto& [i, expected] : c.frequencies) EXPECT_NEAR(found[i] / expected, 1, 1e-6) << c.name << " " << i;
    EXPECT_NEAR(attention_factor(c.rotary), c.factor, 5e-9) << c.name;
  }
}

TEST(RotaryScaling, LinearDividesEveryFrequency) {
  const Rotary plain{8, 64, 1e4, {}}, linear{8, 64, 1e4, {.type = RopeType::kLinear, .factor = 4}};
  const auto before = rotary_frequencies(plain, 64), after = rotary_frequencies(linear, 64);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(after[i], before[i] / 4) << i;
  EXPECT_EQ(attention_factor(linear), 1);
}

// Computed by transformers for the models of tests/reference/logits; 2 ulp of fp32.
TEST(RotaryScaling, HasTheFrequenciesOfTheReferenceModels) {
  for (const char* model : {"llama3_1_rope", "qwen2_yarn", "mixtral", "qwen2_moe", "deepseek_v3"}) {
    const std::filesystem::path folder = std::filesystem::path(LOOM_SOURCE_DIR) / "tests/reference/logits" / model;
    const Json facts = Json::parse(test::read_file(folder / "facts.json"));
    const DecoderConfig config = load_decoder_config(folder);
    const Rotary rotary = rotary_of(config);
    const auto found = rotary_frequencies(rotary, rotary.max_position_embeddings);
    ASSERT_EQ(found.size(), facts["inv_freq"].size()) << model;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const auto expected = facts["inv_freq"][i].get<float>();
      const float ulp = std::nextafter(expected, std::numeric_limits<float>::infinity()) - expected;
      EXPECT_LE(std::abs(found[i] - expected), 2 * ulp) << model << " " << i;
    }
    EXPECT_NEAR(attention_factor(rotary), facts["attention_scaling"].get<double>(), 1e-12) << model;
    EXPECT_NEAR(attention_scale(config), facts["softmax_scale"].get<double>(), 1e-12) << model;
  }
}

TEST(RotaryScaling, DynamicGrowsAndStaysUntilAShorterCall) {
  const Rotary dynamic{8, 64, 1e4, {.type = RopeType::kDynamic, .factor = 4}};
  EXPECT_EQ(frequency_length(dynamic, 0, 10), 64);
  EXPECT_EQ(frequency_length(dynamic, 64, 100), 100);
  EXPECT_EQ(frequency_length(dynamic, 100, 80), 100);  // it stays
  EXPECT_EQ(frequency_length(dynamic, 100, 64), 100);
  EXPECT_EQ(frequency_length(dynamic, 100, 63), 64);  // and falls back
}

TEST(RotaryScaling, SaysTheLongestSequence) {
  const auto longest = [](const RotaryScaling& scaling) { return longest_sequence(Rotary{8, 64, 1e4, scaling}); };
  EXPECT_EQ(longest({}), 64);
  EXPECT_EQ(longest({.type = RopeType::kLinear, .factor = 2.5}), 160);
  EXPECT_EQ(longest({.type = RopeType::kDynamic, .factor = 2}), 128);
  EXPECT_EQ(longest({.type = RopeType::kYarn, .factor = 4, .original_max_position_embeddings = 64}), 256);
  EXPECT_EQ(longest({.type = RopeType::kYarn, .factor = 2, .original_max_position_embeddings = 16}), 64);
  EXPECT_EQ(longest({.type = RopeType::kLlama3, .factor = 8, .original_max_position_embeddings = 64}), 64);
  EXPECT_EQ(longest({.type = RopeType::kLongRope, .factor = 4, .original_max_position_embeddings = 16}), 64);
}

// --- as configurations say it

// Head dim 8, M 64.
const std::string kModel = R"({"model_type": "llama", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24,
  "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64)";
const std::string kPairs = R"("short_factor": [1, 1.5, 2, 2.5], "long_factor": [1, 3, 5, 7])";

DecoderConfig parse(const std::string& keys) { return parse_decoder_json(kModel + keys + "}", "config.json"); }
std::string error_of(const std::string& keys) {
  return test::message_of<ConfigError>([&] { parse(keys); });
}

std::vector<std::string> blocks() {
  return {
      R"("TYPE": "linear", "factor": 2)",
      R"("TYPE": "dynamic", "factor": 2.5)",
      R"("TYPE": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
         "original_max_position_embeddings": 16)",
      R"("TYPE": "yarn", "factor": 4, "original_max_position_embeddings": 16, "beta_fast": 20, "beta_slow": null,
         "mscale": 0.7, "mscale_all_dim": 0.9, "truncate": false)",
      R"("TYPE": "yarn", "factor": 4, "attention_factor": 1.25)",
      R"("TYPE": "longrope", "original_max_position_embeddings": 16, )" + kPairs,
  };
}

std::string as(std::string block, const std::string& type_key) {
  return block.replace(block.find("TYPE"), 4, type_key);
}

TEST(RotaryKeys, HaveOneMeaningInBothSpellings) {
  for (const std::string& block : blocks()) {
    const DecoderConfig now = parse(R"(, "rope_parameters": {"rope_theta": 5e5, )" + as(block, "rope_type") + "}");
    EXPECT_NE(now.rope_scaling.type, RopeType::kDefault) << block;
    EXPECT_TRUE(now == parse(R"(, "rope_theta": 5e5, "rope_scaling": {)" + as(block, "type") + "}")) << block;
    EXPECT_TRUE(now == parse(R"(, "rope_theta": 5e5, "rope_scaling": {)" + as(block, "rope_type") + "}")) << block;
  }
}

TEST(RotaryKeys, AreWrittenInBothSpellingsAndReadBackEqual) {
  for (const std::string& block : blocks()) {
    const DecoderConfig config = parse(R"(, "rope_theta": 5e5, "rope_scaling": {)" + as(block, "type") + "}");
    Json json = Json::parse(to_json(config));
    EXPECT_TRUE(parse_decoder_json(json.dump(), "config.json") == config) << json;
    EXPECT_EQ(json["rope_parameters"]["rope_theta"], 5e5);
    EXPECT_EQ(json["rope_parameters"]["rope_type"], name(config.rope_scaling.type));
    json.erase("rope_parameters");  // transformers 4
    EXPECT_TRUE(parse_decoder_json(json.dump(), "config.json") == config) << json;
  }
}

TEST(RotaryKeys, CallLongropeSuToo) {
  const std::string rest = R"("original_max_position_embeddings": 16, )" + kPairs + "}";
  EXPECT_TRUE(parse(R"(, "rope_scaling": {"type": "su", )" + rest) ==
              parse(R"(, "rope_scaling": {"type": "longrope", )" + rest));
}

TEST(RotaryKeys, TakeWhatIsAbsentFromOtherKeys) {
  const RotaryScaling yarn =
      parse(R"(, "rope_scaling": {"type": "yarn", "original_max_position_embeddings": 16})").rope_scaling;
  EXPECT_EQ(yarn.factor, 4);  // 64 / 16
  EXPECT_EQ(parse(R"(, "rope_scaling": {"type": "yarn", "factor": 2})").rope_scaling.original_max_position_embeddings,
            64);
  // The file's own key comes before the block's.
  EXPECT_EQ(parse(R"(, "original_max_position_embeddings": 8,
                     "rope_scaling": {"type": "yarn", "original_max_position_embeddings": 16})")
                .rope_scaling.factor,
            8);
  // An empty block replaces nothing.
  EXPECT_EQ(
      parse(R"(, "rope_scaling": {}, "rope_parameters": {"rope_type": "linear", "factor": 3})").rope_scaling.factor, 3);
  EXPECT_EQ(parse(R"(, "rope_scaling": {"type": "linear", "factor": 2},
                     "rope_parameters": {"rope_type": "linear", "factor": 3})")
                .rope_scaling.factor,
            2);
}

TEST(RotaryKeys, RefuseWhatIsNoScaling) {
  const auto scaling = [](const std::string& block) { return error_of(R"(, "rope_scaling": {)" + block + "}"); };
  EXPECT_EQ(
      scaling(R"("type": "yarm")"),
      "config.json: rope_scaling.type is \"yarm\"; known are default, mrope, linear, dynamic, llama3, yarn, longrope, su; did "
      "you mean 'yarn'?");
  EXPECT_EQ(scaling(R"("rope_type": "linear", "factor": -2)"),
            "config.json: rope_scaling.factor is -2; it must be at least 1");
  EXPECT_EQ(scaling(R"("rope_type": "dynamic", "factor": 0.5)"),
            "config.json: rope_scaling.factor is 0.5; it must be at least 1");
  EXPECT_EQ(scaling(R"("rope_type": "yarn", "factor": 0)"),
            "config.json: rope_scaling.factor is 0; it must be at least 1");
  EXPECT_EQ(scaling(R"("rope_type": "linear")"),
            "config.json: rope_scaling.factor is absent; rope_type linear needs a number from 1 up");
  EXPECT_EQ(scaling(R"("rope_type": "linear", "factor": 1e12)"),
            "config.json: rope_scaling.factor is 1e12; of 64 positions it must be at most 33554431.984375");
  EXPECT_EQ(
      scaling(R"("rope_type": "yarn", "original_max_position_embeddings": 128)"),
      "config.json: rope_scaling.factor is absent; max_position_embeddings / original_max_position_embeddings is 0.5, "
      "and it must be at least 1");
  EXPECT_EQ(scaling(R"("type": "longrope", "short_factor": [1, 2, 3], "long_factor": [1, 2, 3, 4])"),
            "config.json: rope_scaling.short_factor is [1,2,3]; it has 3 numbers, and half of head_dim 8 is 4");
  EXPECT_EQ(scaling(R"("type": "longrope", "short_factor": [1, 2, 3, 4], "long_factor": [1, 2, 3, 4, 5])"),
            "config.json: rope_scaling.long_factor is [1,2,3,4,5]; it has 5 numbers, and half of head_dim 8 is 4");
  EXPECT_EQ(
      scaling(R"("type": "longrope", "short_factor": [1, 2, 3, 0], "long_factor": [1, 2, 3, 4])"),
      "config.json: rope_scaling.short_factor is [1,2,3,0]; a list of numbers above 0 is needed, head_dim / 2 of them");
  EXPECT_EQ(scaling(R"("type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1)"),
            "config.json: rope_scaling.high_freq_factor is 1; it must be above low_freq_factor (4)");
  EXPECT_EQ(scaling(R"("type": "yarn", "factor": 2, "beta_fast": 1, "beta_slow": 32)"),
            "config.json: rope_scaling.beta_fast is 1; it must be at least beta_slow (32)");
  EXPECT_EQ(scaling(R"("type": "linear", "factor": 2, "beta_fast": 32)"),
            "config.json: unknown key 'rope_scaling.beta_fast'");
  EXPECT_EQ(scaling(R"("type": "yarn", "factor": 2, "beta_fats": 32)"),
            "config.json: unknown key 'rope_scaling.beta_fats'; did you mean 'rope_scaling.beta_fast'?");
  EXPECT_EQ(scaling(R"("type": "linear", "factor": 2, "partial_rotary_factor": 0.5)"),
            "config.json: rope_scaling.partial_rotary_factor is 0.5; only 1 is built");
  EXPECT_EQ(error_of(R"(, "partial_rotary_factor": 0.5)"),
            "config.json: partial_rotary_factor is 0.5; only 1 is built");
  EXPECT_EQ(error_of(R"(, "rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2, "rope_theta": 1e6})"),
            "config.json: rope_scaling.rope_theta is 1e6; the file also says 10000");
  EXPECT_EQ(
      error_of(R"(, "rope_parameters": {"full_attention": {"rope_type": "default"}})"),
      "config.json: rope_parameters.full_attention is {\"rope_type\":\"default\"}; rotary embeddings of their own for "
      "a type of layers are not built");
}

// --- in the model

class ScaledModel : public ::testing::Test {
 protected:
  // Random weights; the rotary embedding alone tells the models apart.
  static std::shared_ptr<nn::Module> model(const DecoderConfig& config) {
    auto made = build_decoder(config);
    nn::materialize(*made);
    nn::init_weights(*made, 3);
    return made;
  }
  static std::vector<float> logits(nn::Module& model, std::int64_t tokens) {
    const autograd::NoGrad no_grad;
    const Tensor ids = Tensor::host({1, tokens}, DType::kI32, "ids");
    for (std::int64_t i = 0; i < tokens; ++i) ids.data<std::int32_t>()[i] = static_cast<std::int32_t>(i * 7 % 32);
    return model(ids).tensor().to_vector<float>();
  }
  static std::vector<float> first(std::vector<float> values, std::size_t count) {
    values.resize(count);
    return values;
  }

  test::TestRank rank_;
};

TEST_F(ScaledModel, LongropeSwitchesItsFrequenciesBeyondTheOriginalPositions) {
  const auto scaled = model(parse(R"(, "rope_scaling": {"type": "longrope", "attention_factor": 1,
                                       "original_max_position_embeddings": 16, )" +
                                  kPairs + "}"));
  const auto with = [](const std::string& divisors) {
    return model(parse(R"(, "rope_scaling": {"type": "longrope", "attention_factor": 1, "short_factor": )" + divisors +
                       R"(, "long_factor": )" + divisors + "}"));
  };
  const auto all_short = with("[1, 1.5, 2, 2.5]"), all_long = with("[1, 3, 5, 7]");
  EXPECT_EQ(logits(*scaled, 16), logits(*all_short, 16));
  EXPECT_EQ(logits(*scaled, 17), logits(*all_long, 17));  // for all positions of the call
  EXPECT_EQ(logits(*scaled, 16), logits(*all_short, 16));
}

TEST_F(ScaledModel, DynamicTakesSequencesBeyondItsPositionsAtAnotherBase) {
  const auto scaled = model(parse(R"(, "rope_scaling": {"type": "dynamic", "factor": 2})"));
  const auto plain = model(parse(""));
  EXPECT_EQ(logits(*scaled, 64), logits(*plain, 64));
  const auto longer = logits(*scaled, 128);
  const double base = 1e4 * std::pow(2.0 * 128 / 64 - 1, 8.0 / 6);
  DecoderConfig other = parse("");
  other.max_position_embeddings = 128;
  other.rope_theta = base;
  EXPECT_EQ(longer, logits(*model(other), 128));
  EXPECT_EQ(test::message_of<ConfigError>([&] { logits(*scaled, 129); }),
            "a sequence of 129 tokens, but the model's longest sequence is 128 (max_position_embeddings 64, rope_type "
            "dynamic of factor 2); use shorter sequences");
  EXPECT_NE(logits(*scaled, 64), logits(*plain, 64));  // n stays
  EXPECT_EQ(logits(*scaled, 63), logits(*plain, 63));  // until a shorter call
}

// What is cached keeps the frequencies of its call; a new session reads the whole prompt at those of its length.
TEST_F(ScaledModel, GenerationBeyondTheOriginalPositionsTakesTheLongFrequencies) {
  const DecoderConfig config =
      parse(R"(, "rope_scaling": {"type": "longrope", "original_max_position_embeddings": 16, )" + kPairs + "}");
  const auto scaled = model(config);
  std::vector<std::int32_t> prompt;
  for (int i = 0; i < 20; ++i) prompt.push_back(i * 7 % 32);
  GenerationSession session(*scaled, config);
  const Generation made = session.generate({prompt}, {.max_new_tokens = 8}).front();
  const auto greedy = [](std::span<const float> row, std::int64_t) { return choose_token(row, {}, 0, 0); };
  const Generation whole =
      generate(*scaled, prompt, {.max_new_tokens = 8, .max_positions = 64, .end_token_ids = {}}, greedy);
  EXPECT_EQ(made.tokens, whole.tokens);  // all positions are beyond 16 in either
  // A prompt within the original positions is read at the short frequencies.
  const auto short_prompt = std::vector<std::int32_t>(prompt.begin(), prompt.begin() + 12);
  GenerationSession fresh(*scaled, config);
  const Generation again = session.generate({short_prompt}, {.max_new_tokens = 3}).front();
  EXPECT_EQ(again.tokens, fresh.generate({short_prompt}, {.max_new_tokens = 3}).front().tokens);
  EXPECT_EQ(
      again.tokens,
      generate(*scaled, short_prompt, {.max_new_tokens = 3, .max_positions = 64, .end_token_ids = {}}, greedy).tokens);
}

}  // namespace
}  // namespace loom::models
