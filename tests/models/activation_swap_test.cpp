// Promise: --swap-attention swaps what the named modules of every decoder layer but the last save, in every family,
//          with the same bits; a strategy of one's own can swap, and does not forget what was asked for.
// World:   one rank; the reference decoders (two layers and more), OwnModel of own_models.h.
#include "models/mixin/activation_swap.h"

#include <gmock/gmock.h>
#include <set>

#include "engine/core/error.h"
#include "engine/device/recorder.h"
#include "engine/nn/functional.h"
#include "engine/nn/init.h"
#include "engine/tensor/autograd.h"
#include "models/decoder/decoder.h"
#include "models/mixin/fsdp2_mixin.h"
#include "recompute/checkpoint.h"
#include "tests/models/own_models.h"
#include "tests/models/test_rank.h"
#include "tests/support/files.h"
#include "tests/support/issued.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Words = std::vector<std::string>;

const Words kDefault = offload::SwapOptions{}.swap_modules;

std::shared_ptr<nn::Module> decoder(const std::string& family) {
  return build_decoder(load_decoder_config(std::filesystem::path(LOOM_SOURCE_DIR) / "tests/reference/logits" / family));
}

std::vector<std::string> paths(const std::vector<offload::SwapBlock>& blocks) {
  std::vector<std::string> found;
  for (const offload::SwapBlock& block : blocks) found.push_back(block.path);
  return found;
}

// Of the first decoder layer: the modules that `words` mean.
std::vector<std::string> inside_of_first(nn::Module& model, const Words& words) {
  const auto block = swapped_blocks(model, {}, {.swap_attention = true, .swap_modules = words}).front();
  std::vector<std::string> found;
  for (const auto& [name, child] : block.module->children()) {
    if (std::ranges::find(block.inside, child.get()) != block.inside.end()) found.push_back(name);
  }
  return found;
}

TEST(SwapModules, AreTheFamiliesOwn) {
  const auto qwen2 = decoder("qwen2"), gpt2 = decoder("gpt2");
  EXPECT_THAT(inside_of_first(*qwen2, kDefault),
              UnorderedElementsAre("input_layernorm", "self_attn", "post_attention_layernorm"));
  EXPECT_THAT(inside_of_first(*gpt2, kDefault), UnorderedElementsAre("ln_1", "attn", "ln_2"));
  EXPECT_THAT(inside_of_first(*qwen2, {"self_attention"}), ElementsAre("self_attn"));
  EXPECT_THAT(inside_of_first(*gpt2, {"pre_mlp_layernorm", "mlp"}), UnorderedElementsAre("ln_2", "mlp"));
  EXPECT_THAT(inside_of_first(*qwen2, {"self_attn", "self_attention"}), ElementsAre("self_attn"));
}

TEST(SwapModules, ThatAreNotThereAreRefused) {
  const auto qwen2 = decoder("qwen2");
  EXPECT_EQ(test::message_of<ConfigError>([&] { swap_attention(*qwen2, {"norm"}); }),
            "--swap-modules names norm, which 'model.layers.0' (Qwen2DecoderLayer) has not; use input_norm, "
            "self_attention, post_attention_norm, or its children: self_attn, mlp, input_layernorm, "
            "post_attention_layernorm");
  test::OwnModel own;
  EXPECT_EQ(test::message_of<ConfigError>([&] { swap_attention(own, kDefault); }),
            "--swap-attention is for models with decoder layers, and OwnModel has none; list its blocks in "
            "activation_offload_modules of the file of --fsdp2-config-path");
}

TEST(SmartSwapBlocks, AreTheOutermostWrappedModulesOrTheDecoderLayers) {
  test::OwnModel own;
  EXPECT_THAT(paths(smart_swap_blocks(own, {"embed", "layers.0", "layers.0.up", "layers.1", "head"})),
              ElementsAre("embed", "layers.0", "layers.1", "head"));
  const auto qwen2 = decoder("qwen2");
  EXPECT_EQ(paths(smart_swap_blocks(*qwen2, {})), paths(decoder_layers(*qwen2)));
  EXPECT_THAT(test::message_of<ConfigError>([&] { smart_swap_blocks(own, {}); }),
              HasSubstr("--smart-swap is for models"));
  EXPECT_EQ(test::message_of<ConfigError>([&] {
              swap_activations(own, {.wrapped = {"head"}}, {.smart_swap_chosen = {{"layers.7", {0}}}});
            }),
            "--smart-swap chose tensors of 'layers.7', which OwnModel does not have as a block; plan the same model");
}

// --- Bits

using Change = std::function<void(nn::Module& model)>;

struct Result {
  std::vector<std::vector<double>> values;  // loss and gradients
  std::set<std::string> swapped;            // layers of which something left
};

Result trained(const std::string& family, const Change& change) {
  test::TestRank rank;
  rank.context.slot<nn::KernelOptions>() = nn::KernelOptions::fast();
  const auto model = decoder(family);
  nn::materialize(*model);
  nn::init_weights(*model, 3);
  change(*model);
  const device::Recorder recorder(rank.device);
  Result result;
  std::vector<std::int64_t> ids(2 * 12);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(7 * i % 256);
  const Tensor loss = ops::mean((*model)(Tensor::from(ids, {2, 12})));
  autograd::backward(loss);
  result.values.push_back({loss.item()});
  for (auto& [path, gradient] : test::gradients(*model)) result.values.push_back(gradient);
  for (const test::Issued& item : test::issued(recorder.recording())) {
    if (item.name == "swap_d2h") result.swapped.insert(item.subject);
  }
  return result;
}

class SwapAttention : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Families, SwapAttention, ::testing::Values("qwen2", "llama", "gpt2"));

TEST_P(SwapAttention, GivesTheSameBitsAndLeavesTheLastLayer) {
  const Result plain = trained(GetParam(), [](nn::Module&) {});
  EXPECT_THAT(plain.swapped, IsEmpty());
  const Result swapped = trained(GetParam(), [](nn::Module& model) { swap_attention(model, kDefault); });
  EXPECT_EQ(swapped.values, plain.values);
  const auto layers = paths(decoder_layers(*decoder(GetParam())));
  ASSERT_GE(layers.size(), 2U);
  EXPECT_EQ(swapped.swapped, std::set<std::string>(layers.begin(), layers.end() - 1));
}

TEST_P(SwapAttention, GivesTheSameBitsBesideRecomputedMlps) {
  const Result plain = trained(GetParam(), [](nn::Module&) {});
  const Result both = trained(GetParam(), [](nn::Module& model) {
    swap_activations(model, {}, {.swap_attention = true, .swap_recompute_mlps = 2});
    const auto layers = decoder_layers(model);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      EXPECT_EQ(recompute::is_checkpointed(*layers[i].module->find("mlp")), i < 2);
    }
  });
  EXPECT_EQ(both.values, plain.values);
}

TEST(SwapAttention, RefusesMoreMlpsThanLayers) {
  const auto qwen2 = decoder("qwen2");
  const std::size_t layers = decoder_layers(*qwen2).size();
  EXPECT_EQ(test::message_of<ConfigError>([&] { recompute_first_mlps(*qwen2, 99); }),
            fmt::format("--recompute-num-layers is 99, but Qwen2ForCausalLM has {} decoder layers; use at most {}",
                        layers, layers));
}

TEST(SwapAttention, RefusesALayerThatIsRecomputed) {
  const auto qwen2 = decoder("qwen2");
  recompute::checkpoint(*qwen2->find("model.layers.0"), {.path = "model.layers.0"});
  EXPECT_THAT(
      test::message_of<ConfigError>([&] { swap_attention(*qwen2, kDefault); }),
      HasSubstr("--swap-attention swaps the tensors saved inside 'model.layers.0', which is recomputed as a whole"));
}

// --- Strategies of one's own

// Swaps by itself, behind recompute.
class SwapsBlocks final : public test::OwnModel {
 protected:
  void _fully_shard(const sharding::FullyShardOptions& kwargs, const sharding::Fsdp2Config& config) override {
    set_recompute_modules_to_wrap(*this, {"layers.{*}"}, config.use_reentrant);
    set_offload_modules_to_wrap(*this, {"layers.{*}"}, config.pin_memory);
    set_fullyshard_modules_to_wrap(*this, {"layers.{*}"}, kwargs);
  }
};

std::vector<std::vector<double>> losses_and_gradients(nn::Module& model) {
  std::vector<std::vector<double>> found{{test::forward_backward(model, test::toy_input(0, 4, test::kOwnWidth))}};
  for (auto& [path, gradient] : test::gradients(model)) found.push_back(gradient);
  return found;
}

TEST(OwnStrategy, MaySwapAndGivesTheSameBitsAsTheFile) {
  const auto run = [](test::OwnModel& model, comm::World& world, const std::string& yaml) {
    model.fully_shard(world, test::own_config(test::kWrapLayers + yaml));
    return losses_and_gradients(model);
  };
  for (const int ranks : {1, 2}) {
    test::run_world(ranks, [&](RankContext&, comm::World& world) {
      SwapsBlocks own;
      test::OwnModel file, plain;
      const auto expected = run(plain, world, "");
      EXPECT_EQ(run(own, world, ""), expected);
      EXPECT_EQ(run(file, world, "activation_offload_modules: ['layers.{*}']\nrecompute_modules: ['layers.{*}']\n"),
                expected);
      for (const char* path : {"layers.0", "layers.2"}) {
        EXPECT_TRUE(offload::is_swapped(*own.find(path)));
        EXPECT_TRUE(offload::is_swapped(*file.find(path)));
        EXPECT_FALSE(offload::is_swapped(*plain.find(path)));
      }
    });
  }
}

class OnlyShards final : public test::OwnModel {
 public:
  bool asked = false;

 protected:
  void _fully_shard(const sharding::FullyShardOptions& kwargs, const sharding::Fsdp2Config&) override {
    if (asked) swap_as_asked();
    set_fullyshard_modules_to_wrap(*this, {"layers.{*}"}, kwargs);
  }
};

TEST(OwnStrategy, DoesNotForgetWhatTheCommandLineAsksFor) {
  test::run_world(1, [](RankContext&, comm::World& world) {
    const Fsdp2Options options{.swap = {.smart_swap_chosen = {{"layers.1", {0}}}}};
    OnlyShards forgets;
    EXPECT_EQ(test::message_of<ConfigError>(
                  [&] { forgets.fully_shard(world, test::own_config(test::kWrapLayers), options); }),
              "--smart-swap is given, and _fully_shard of OwnModel swaps nothing; call swap_as_asked() there, after "
              "recompute and before sharding");
    OnlyShards model;
    model.asked = true;
    model.fully_shard(world, test::own_config(test::kWrapLayers), options);
    EXPECT_TRUE(offload::is_swapped(*model.find("layers.1")));
    EXPECT_NO_THROW(losses_and_gradients(model));
  });
}

TEST(OwnStrategy, SwapsBeforeItShards) {
  test::run_world(1, [](RankContext&, comm::World& world) {
    test::OwnModel model;
    model.fully_shard(world, test::own_config(test::kWrapLayers));
    EXPECT_EQ(
        test::message_of<ConfigError>([&] { set_offload_modules_to_wrap(model, {"layers.0"}); }),
        "set_offload_modules_to_wrap: 'layers.0' (OwnBlock) is sharded already; offload first, then shard, so that "
        "no gathered parameter is taken for an activation");
  });
}

TEST(ActivationOffloadModules, ThatMatchNothingAreAnErrorWithThePlace) {
  test::run_world(1, [](RankContext&, comm::World& world) {
    test::OwnModel model;
    EXPECT_THAT(test::message_of<ConfigError>(
                    [&] { model.fully_shard(world, test::own_config("activation_offload_modules: ['layer.{*}']\n")); }),
                HasSubstr("f.yaml:1:30: activation_offload_modules: "));
    EXPECT_FALSE(offload::is_swapped(*model.find("layers.0")));
  });
}

}  // namespace
}  // namespace loom::models
