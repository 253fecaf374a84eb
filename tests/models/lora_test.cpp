// Promise: adapters stand beside the modules that peft's names mean, change nothing before they are trained, train
//          alone, and go to and from peft's folder; what does not fit is one line with file and name.
// World:   no rank, or 1 to 4 ranks as threads; decoders of two layers; folders in the test's own.
#include "models/lora/lora.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/nn/optim/optimizer.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "models/hub/model_hub.h"
#include "models/lora/adapter_folder.h"
#include "models/lora/lora_linear.h"
#include "models/mixin/fsdp2_mixin.h"
#include "sharding/full_parameters.h"
#include "tests/models/lora_models.h"
#include "tests/models/test_rank.h"
#include "tests/support/files.h"
#include "tests/support/world.h"

namespace loom::models {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr const char* kGpt2 =
    R"({"model_type": "gpt2", "vocab_size": 32, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16,
        "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0})";

Tensor ids() {
  std::vector<std::int32_t> values(16);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int32_t>(5 * i % 32);
  return Tensor::from(values, {2, 8});
}

std::vector<float> logits(nn::Module& model) {
  const autograd::NoGrad no_grad;
  return model(ids()).tensor().to_vector<float>();
}

// --- Targets

TEST(LoraTargets, AreNamesAndEndsOfPaths) {
  test::TestRank rank;
  EXPECT_THAT(
      lora_adapted(kTinyQwen2, lora_on({"q_proj", "layers.1.mlp.up_proj"})),
      ElementsAre("model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.up_proj"));
  EXPECT_THAT(lora_adapted(kGpt2, lora_on({"c_attn"})),
              ElementsAre("transformer.h.0.attn.c_attn", "transformer.h.1.attn.c_attn"));
}

TEST(LoraTargets, AllLinearIsAllButTheOutputLayer) {
  test::TestRank rank;
  EXPECT_THAT(lora_adapted(kTinyQwen2, lora_on({"all-linear"})), SizeIs(14));
  EXPECT_THAT(lora_adapted(kGpt2, lora_on({"all-linear"})), SizeIs(8));
}

TEST(LoraTargets, BracesCrossDots) {
  test::TestRank rank;
  const auto lora = add_lora(*tiny_model(kTinyQwen2), lora_on({"model.layers.{*}.q_proj"}));
  EXPECT_THAT(lora->adapted, ElementsAre("model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj"));
  EXPECT_THAT(lora_adapted(kTinyQwen2, lora_on({"{*}.1.{*}.{*}_proj{*}"})), SizeIs(7));
  EXPECT_THAT(lora_refusal(kTinyQwen2, lora_on({"model.layers.{*}.self_attn.q_proj{*}q_proj"})),
              HasSubstr("matches no module"));
  // peft, which does not know braces, gets the paths.
  EXPECT_EQ(lora->options.target_modules, lora->adapted);
}

TEST(LoraTargets, MegatronsNamesAreSaid) {
  test::TestRank rank;
  const auto qwen2 =
      add_lora(*tiny_model(kTinyQwen2), lora_on({"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"}));
  EXPECT_THAT(qwen2->adapted, SizeIs(14));
  EXPECT_THAT(qwen2->options.target_modules,
              ElementsAre("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"));
  EXPECT_EQ(qwen2->notes.front(), "linear_qkv of --lora-target-modules means q_proj, k_proj, v_proj here");
  const auto gpt2 = add_lora(*tiny_model(kGpt2), lora_on({"linear_proj", "linear_fc2"}));
  EXPECT_THAT(gpt2->options.target_modules, ElementsAre("attn.c_proj", "mlp.c_proj"));
  EXPECT_TRUE(gpt2->has_conv1d);
}

TEST(LoraTargets, LayersToTransformLeaveTheOthersOut) {
  test::TestRank rank;
  LoraOptions options = lora_on({"q_proj"});
  options.layers_to_transform = {1};
  EXPECT_THAT(lora_adapted(kTinyQwen2, options), ElementsAre("model.layers.1.self_attn.q_proj"));
  options.layers_to_transform = {7};
  EXPECT_THAT(lora_refusal(kTinyQwen2, options), HasSubstr("layers_to_transform [7] leaves none of the 2 modules"));
}

TEST(LoraTargets, WhatMatchesNothingOrIsNotLinearIsRefused) {
  test::TestRank rank;
  EXPECT_EQ(lora_refusal(kTinyQwen2, lora_on({"q_pro"})),
            "--lora-target-modules: the target module q_pro matches no module; the model's linear modules are "
            "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, lm_head; did you mean q_proj?");
  EXPECT_THAT(lora_refusal(kTinyQwen2, lora_on({"mlp"})),
              HasSubstr("the target module mlp means 'model.layers.0.mlp', which is a "
                        "Qwen2MLP; adapters apply to linear modules"));
  LoraOptions options = lora_on({"q_proj"});
  options.modules_to_save = {"lm_heat"};
  EXPECT_THAT(lora_refusal(kTinyQwen2, options), HasSubstr("the module to save lm_heat matches no module"));
  options.modules_to_save = {"lm_head"};
  EXPECT_THAT(lora_refusal(kGpt2, options),
              HasSubstr("is tied to 'transformer.wte.weight', which would be trained with it; "
                        "add --untie-embeddings-and-output-weights"));
  options.r = 0;
  EXPECT_THAT(lora_refusal(kTinyQwen2, options),
              HasSubstr("the rank of adapters is 0; use a whole number of at least 1"));
}

// --- Values

TEST(Lora, WithZeroBItIsTheBase) {
  test::TestRank rank;
  for (const char* config : {kTinyQwen2, kGpt2}) {
    const auto base = tiny_model(config), tuned = tiny_model(config);
    init_on_device(*base, {.seed = 3});
    add_lora(*tuned, lora_on({"all-linear"}));
    init_on_device(*tuned, {.seed = 3});
    EXPECT_EQ(logits(*tuned), logits(*base));
  }
}

TEST(Lora, AddsTheScaledUpdate) {
  test::TestRank rank;
  for (const char* config : {kTinyQwen2, kGpt2}) {
    const auto model = tiny_model(config);
    LoraOptions options = lora_on({"all-linear"});
    options.init = LoraInit::kRandom;
    const auto lora = add_lora(*model, options);
    init_on_device(*model, {.seed = 3});
    const std::vector<float> with = logits(*model);
    // W + scale * B A in the place of both.
    for (const std::string& path : lora->adapted) {
      auto& layer = dynamic_cast<LoraLinear&>(*model->find(path));
      const std::vector<float> a = layer.lora_a().weight.value.to_vector<float>();
      const std::vector<float> b = layer.lora_b().weight.value.to_vector<float>();
      std::vector<float> w = layer.weight.value.to_vector<float>();
      const auto in = static_cast<std::size_t>(layer.lora_a().weight.value.shape()[1]);
      const auto out = static_cast<std::size_t>(layer.lora_b().weight.value.shape()[0]);
      for (std::size_t i = 0; i < out; ++i) {
        for (std::size_t j = 0; j < in; ++j) {
          double sum = 0;
          for (std::size_t k = 0; k < 4; ++k) sum += static_cast<double>(b[i * 4 + k]) * a[k * in + j];
          w[layer.is_conv1d() ? j * out + i : i * in + j] += static_cast<float>(2 * sum);
        }
      }
      layer.weight.value.copy_from(Tensor::from(w, layer.weight.value.shape()));
      layer.lora_b().weight.value.fill(0);
    }
    const std::vector<float> merged = logits(*model);
    for (std::size_t i = 0; i < with.size(); ++i) ASSERT_NEAR(with[i], merged[i], 2e-5);
  }
}

TEST(Lora, OnlyAdaptersHaveGradients) {
  test::TestRank rank;
  const auto model = tiny_model(kTinyQwen2);
  LoraOptions options = lora_on({"q_proj"});
  options.modules_to_save = {"lm_head"};
  const auto lora = add_lora(*model, options);
  init_on_device(*model, {.seed = 3});
  autograd::backward(ops::mean((*model)(ids()).tensor()));
  for (const auto& [path, parameter] : model->named_parameters()) {
    EXPECT_EQ(parameter.requires_grad(), lora->is_tuned(path)) << path;
    EXPECT_EQ(parameter.grad().defined(), lora->is_tuned(path)) << path;
  }
  std::size_t optimized = 0;
  for (const auto& group : nn::make_parameter_groups(*model)) optimized += group.parameters.size();
  EXPECT_EQ(optimized, 5u);  // A and B of two layers, and lm_head
  EXPECT_EQ(describe_lora(*model),
            "LoRA of rank 4, scale 2 (alpha 8) on 2 modules, with 1 trained whole: 384 of 1672 parameters are trained");
}

using Values = std::vector<std::pair<std::string, std::vector<float>>>;

Values tuned_values(nn::Module& model) {
  Values values;
  const auto lora = lora_of(model);
  sharding::for_each_full_parameter(
      model, [&](const std::string& path, const Tensor& full) { values.emplace_back(path, full.to_vector<float>()); },
      [&](const std::string& path) { return lora->is_tuned(path); });
  return values;
}

TEST(Lora, FirstValuesDoNotDependOnRanks) {
  std::vector<Values> of_ranks;
  for (const int ranks : {1, 2, 4}) {
    const auto all = test::of_each_rank(ranks, [&](RankContext&, comm::World& world) {
      const auto model = tiny_model(kTinyQwen2);
      LoraOptions options = lora_on({"q_proj"});
      options.r = 3;  // fewer rows than ranks
      add_lora(*model, options);
      const auto config = sharding::parse_fsdp2_config(
          "sharding_size: auto\nsub_modules_to_wrap: ['model.layers.{*}']\n", "fsdp2.yaml");
      fully_shard(*model, world, config, {.weights = {.seed = 5}});
      return tuned_values(*model);
    });
    for (const Values& values : all) of_ranks.push_back(values);
  }
  for (const Values& values : of_ranks) EXPECT_EQ(values, of_ranks.front());
  const auto& [path, a] = of_ranks.front().front();
  EXPECT_THAT(path, EndsWith("q_proj.lora_A.weight"));
  const float bound = 1.0F / std::sqrt(8.0F);  // Kaiming with a = sqrt 5: 1 / sqrt(in)
  for (const float value : a) EXPECT_LE(std::abs(value), bound);
  EXPECT_GT(*std::ranges::max_element(a), bound / 2);
  for (const float value : of_ranks.front()[1].second) EXPECT_EQ(value, 0.0F);
}

TEST(Lora, IsRefusedTwiceAndAfterSharding) {
  test::run_world(1, [](RankContext&, comm::World& world) {
    const auto model = tiny_model(kTinyQwen2);
    add_lora(*model, lora_on({"q_proj"}));
    EXPECT_THAT(test::message_of<ConfigError>([&] { add_lora(*model, lora_on({"q_proj"})); }),
                HasSubstr("the model has adapters already"));
    const auto sharded = tiny_model(kTinyQwen2);
    fully_shard(*sharded, world, sharding::parse_fsdp2_config("sharding_size: 1\n", "fsdp2.yaml"), {});
    EXPECT_THAT(test::message_of<ConfigError>([&] { add_lora(*sharded, lora_on({"q_proj"})); }),
                HasSubstr("adapters come before sharding"));
  });
}

// --- peft's folder

class AdapterFolderTest : public ::testing::Test {
 protected:
  AdapterFolderTest() : folder_(test::fresh_folder() / "adapter") {
    model_ = tiny_model(kTinyQwen2);
    LoraOptions options = lora_on({"q_proj", "v_proj"});
    options.init = LoraInit::kRandom;
    options.modules_to_save = {"lm_head"};
    lora_ = add_lora(*model_, options);
    init_on_device(*model_, {.seed = 9});
    std::vector<std::pair<std::string, Tensor>> tuned;
    for (const auto& [path, parameter] : model_->named_parameters()) {
      if (lora_->is_tuned(path)) tuned.emplace_back(path, parameter);
    }
    write_adapter_folder(folder_, adapter_config_json(*lora_, "the/base"), tuned);
  }

  nlohmann::json config() const { return nlohmann::json::parse(test::read_file(folder_ / "adapter_config.json")); }
  std::string refusal_with(const std::string& key, const nlohmann::json& value) {
    nlohmann::json changed = config();
    changed[key] = value;
    test::write_file(folder_ / "adapter_config.json", changed.dump());
    return refusal();
  }
  std::string refusal() const {
    return test::message_of<ConfigError>([&] { AdapterFolder{folder_}; });
  }
  // The weights, each as `name` says; none: left out.
  void rename(const std::function<std::string(const std::string&)>& name) {
    const io::SafetensorsFile file(folder_ / "adapter_model.safetensors");
    std::vector<io::TensorToWrite> tensors;
    for (const io::StoredTensor& t : file.tensors()) {
      if (const std::string to = name(t.name); !to.empty()) tensors.push_back({to, t.dtype, t.shape, t.bytes});
    }
    io::write_safetensors(folder_ / "adapter_model.safetensors", std::move(tensors));
  }

  test::TestRank rank_;
  std::filesystem::path folder_;
  std::shared_ptr<nn::Module> model_;
  std::shared_ptr<const Lora> lora_;
};

TEST_F(AdapterFolderTest, HasPeftsNamesAndKeys) {
  const io::SafetensorsFile file(folder_ / "adapter_model.safetensors");
  EXPECT_THAT(file.tensors(), SizeIs(9));
  EXPECT_EQ(file.at("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight").shape, (Shape{4, 8}));
  EXPECT_EQ(file.at("base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight").shape, (Shape{4, 4}));
  EXPECT_NE(file.find("base_model.model.lm_head.weight"), nullptr);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(config()["peft_type"], "LORA");
  EXPECT_EQ(config()["base_model_name_or_path"], "the/base");
  EXPECT_EQ(config()["target_modules"], (nlohmann::json{"q_proj", "v_proj"}));
  EXPECT_EQ(config()["fan_in_fan_out"], false);
  EXPECT_EQ(config()["lora_alpha"], 8);
}

TEST_F(AdapterFolderTest, ComesBackBitForBit) {
  const AdapterFolder folder(folder_);
  EXPECT_EQ(folder.options().r, 4);
  EXPECT_EQ(folder.options().alpha, 8);
  EXPECT_EQ(folder.base(), "the/base");
  const auto other = tiny_model(kTinyQwen2);
  add_lora(*other, folder.options());
  init_on_device(*other, {.seed = 1});  // reads options().load
  EXPECT_EQ(tuned_values(*other), tuned_values(*model_));
}

TEST_F(AdapterFolderTest, TheNameOfTheAdapterIsReadOver) {
  rename([](const std::string& name) {
    const std::size_t at = name.find(".weight");
    return name.find("lora_") == std::string::npos ? name : name.substr(0, at) + ".default.weight";
  });
  EXPECT_THAT(AdapterFolder(folder_).pairs(), SizeIs(4));
}

TEST_F(AdapterFolderTest, WhatIsNotBuiltIsRefusedByName) {
  EXPECT_THAT(refusal_with("use_dora", true), HasSubstr("use_dora is true; adapters with it are not built"));
}

TEST_F(AdapterFolderTest, AnotherPeftTypeIsRefused) {
  EXPECT_THAT(refusal_with("peft_type", "LOHA"), HasSubstr("peft_type is \"LOHA\"; only LORA is built"));
}

TEST_F(AdapterFolderTest, TrainedBiasesAreRefused) {
  EXPECT_THAT(refusal_with("bias", "all"), HasSubstr("trained biases are not built"));
}

TEST_F(AdapterFolderTest, AChangedBaseIsRefused) {
  EXPECT_THAT(refusal_with("init_lora_weights", "pissa"), HasSubstr("with it the base weights were changed too"));
}

TEST_F(AdapterFolderTest, RanksThatDifferAreRefused) {
  EXPECT_THAT(refusal_with("r", 8), HasSubstr("has rank 4, and "));
  const Tensor b = Tensor::host({8, 3}, DType::kF32, "b");
  const Tensor a = Tensor::host({4, 8}, DType::kF32, "a");
  write_adapter_folder(folder_, adapter_config_json(*lora_, ""),
                       {{"x.q_proj.lora_A.weight", a}, {"x.q_proj.lora_B.weight", b}});
  EXPECT_THAT(refusal(), HasSubstr("the ranks of A and B of x.q_proj differ: A is [4, 8], B is [8, 3]"));
}

TEST_F(AdapterFolderTest, HalfAnAdapterIsRefused) {
  rename([](const std::string& name) {
    return name.ends_with("1.self_attn.q_proj.lora_B.weight") ? std::string() : name;
  });
  EXPECT_THAT(refusal(), HasSubstr("has no lora_B beside it; an adapter has both"));
}

TEST_F(AdapterFolderTest, MissingAndUnexpectedNamesAreNamed) {
  rename([](const std::string& name) {
    return name.find("layers.1.self_attn.q_proj") == std::string::npos
               ? name
               : std::string(name).replace(name.find("layers.1"), 8, "layers.5");
  });
  const auto other = tiny_model(kTinyQwen2);
  LoraOptions options = AdapterFolder(folder_).options();
  add_lora(*other, options);
  const std::string text = test::message_of<ConfigError>([&] { check_adapter(*other, AdapterFolder(folder_)); });
  EXPECT_THAT(text, HasSubstr("missing are 'model.layers.1.self_attn.q_proj.lora_A.weight', "
                              "'model.layers.1.self_attn.q_proj.lora_B.weight'; not expected are "
                              "'model.layers.5.self_attn.q_proj.lora_A.weight'"));
}

TEST_F(AdapterFolderTest, AFolderWithoutTheFilesIsRefused) {
  std::filesystem::remove(folder_ / "adapter_model.safetensors");
  EXPECT_THAT(refusal(), HasSubstr("there is no adapter_model.safetensors; give a folder that peft wrote"));
  test::write_file(folder_ / "adapter_config.json", "{");
  EXPECT_THAT(refusal(), HasSubstr("adapter_model.safetensors"));
}

}  // namespace
}  // namespace loom::models
