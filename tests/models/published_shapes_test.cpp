// Promise: every shipped models YAML describes a model that can be built, and those of published models have the
//          published number of parameters.
#include <gtest/gtest.h>
#include <map>

#include "models/decoder/decoder.h"
#include "models/hub/model_hub.h"

namespace loom::models {
namespace {

std::filesystem::path folder() { return std::filesystem::path(LOOM_SOURCE_DIR) / "configs/models"; }

// Llama 3: "8.030e9", "70.55e9"; the others: the sizes of the published safetensors files' tensors.
const std::map<std::string, std::int64_t> kParameters{{"quickstart.yaml", 5'939'456},
                                                      {"llama3_8b.yaml", 8'030'261'248},
                                                      {"llama3_70b.yaml", 70'553'706'496},
                                                      {"qwen2.5_7b.yaml", 7'615'616'512},
                                                      {"qwen3_8b.yaml", 8'190'735'360},
                                                      {"qwen3_30b_a3b.yaml", 30'532'122'624},
                                                      {"llama3.1_8b.yaml", 8'030'261'248},
                                                      {"mixtral_8x7b.yaml", 46'702'792'704},
                                                      {"qwen1.5_moe_a2.7b.yaml", 14'315'784'192},
                                                      {"deepseek_v3.yaml", 671'026'404'352},
                                                      {"qwen2_vl_7b.yaml", 8'291'375'616},
                                                      {"qwen2.5_vl_7b.yaml", 8'292'166'656},
                                                      {"qwen3_vl_8b.yaml", 8'767'123'696}};

TEST(PublishedShapes, HaveThePublishedNumberOfParameters) {
  std::size_t found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder())) {
    const std::string name = entry.path().filename().string();
    const auto expected = kParameters.find(name);
    ASSERT_NE(expected, kParameters.end()) << name << " is not in this test's table";
    EXPECT_EQ(ModelHub::global().build(entry.path())->parameter_count(), expected->second) << name;
    ++found;
  }
  EXPECT_EQ(found, kParameters.size());
}

TEST(PublishedShapes, AreThoseOfTheFamiliesTheyName) {
  EXPECT_EQ(load_decoder_config(folder() / "llama3_70b.yaml").family, DecoderFamily::kLlama);
  EXPECT_EQ(load_decoder_config(folder() / "qwen2.5_7b.yaml").family, DecoderFamily::kQwen2);
  EXPECT_EQ(load_decoder_config(folder() / "qwen3_8b.yaml").family, DecoderFamily::kQwen3);
  EXPECT_EQ(load_decoder_config(folder() / "mixtral_8x7b.yaml").family, DecoderFamily::kMixtral);
  EXPECT_EQ(load_decoder_config(folder() / "qwen1.5_moe_a2.7b.yaml").family, DecoderFamily::kQwen2Moe);
  EXPECT_EQ(load_decoder_config(folder() / "llama3.1_8b.yaml").rope_scaling.type, RopeType::kLlama3);
  EXPECT_EQ(load_decoder_config(folder() / "deepseek_v3.yaml").family, DecoderFamily::kDeepseekV3);
  const DecoderConfig moe = load_decoder_config(folder() / "qwen3_30b_a3b.yaml");
  EXPECT_EQ(moe.family, DecoderFamily::kQwen3Moe);
  EXPECT_TRUE(moe.moe->norm_topk_prob);
  EXPECT_EQ(moe.head_dim, 128);  // not 2048 / 32
}

}  // namespace
}  // namespace loom::models
