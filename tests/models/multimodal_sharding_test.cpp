// Promise: the published YAML shapes apply to a vision-language model as they are, under the names they use, and print
//          the groups they make; an ignored frozen tower stays whole and as it is; a wrapped one trains.
// World:   ranks as threads, the model of tests/reference/training/internvl_w2 (2 vision layers, 3 decoder layers).
#include <cmath>
#include <cstring>
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/nn/init.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "models/hf/hf_folder.h"
#include "models/internvl/internvl.h"
#include "sharding/fully_shard.h"
#include "tests/support/files.h"
#include "tests/support/world.h"

namespace loom::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::filesystem::path kSource = LOOM_SOURCE_DIR;
const std::filesystem::path kCase = kSource / "tests/reference/training/internvl_w2";

std::shared_ptr<InternVL> build(bool frozen_vision) {
  auto model = build_internvl(load_internvl_config(kCase));
  if (frozen_vision) model->freeze_tower("vision_tower");
  return model;
}

Fsdp2Options from_the_reference(sharding::GatherLayout layout = sharding::GatherLayout::kBuffered) {
  Fsdp2Options options;
  options.layout = layout;
  options.weights.load = [](nn::Module& model) { load_weights(model, io::HfWeights(kCase)); };
  return options;
}

// One sequence of 8 tokens with one image, of this rank.
Tensor logits_of(nn::Module& model, int rank) {
  const Tensor ids = Tensor::host({1, 8}, DType::kI32);
  for (int i = 0; i < 8; ++i) ids.data<std::int32_t>()[i] = i >= 1 && i <= 4 ? 250 : 3 + i + rank;
  const Tensor pixels = Tensor::full({1, 3, 32, 32}, DType::kF32, 0.1 * (rank + 1));
  return model(ids, pixels);
}

double step(nn::Module& model, int rank) {
  const Tensor targets = Tensor::host({1, 8}, DType::kI32);
  for (int i = 0; i < 8; ++i) targets.data<std::int32_t>()[i] = 40 + i;
  const Tensor loss = ops::cross_entropy(logits_of(model, rank), targets);
  autograd::backward(loss);
  return loss.item();
}

// --- The published shapes

struct Yaml {
  const char* name;
  int ranks;
  bool frozen_vision;
  std::string text;    // or, when it begins with '/', a file below the source folder
  std::string groups;  // without the last line
};

sharding::Fsdp2Config read(const Yaml& yaml) {
  if (yaml.text.starts_with('/')) return sharding::load_fsdp2_config(kSource / yaml.text.substr(1));
  return sharding::parse_fsdp2_config(yaml.text, "f.yaml");
}

class PublishedYaml : public ::testing::TestWithParam<Yaml> {};

TEST_P(PublishedYaml, AppliesPrintsItsGroupsAndTrains) {
  const Yaml& yaml = GetParam();
  std::string groups;
  test::run_world(yaml.ranks, [&](RankContext& context, comm::World& world) {
    const auto model = build(yaml.frozen_vision);
    ASSERT_TRUE(model->fully_shard(world, read(yaml), from_the_reference()));
    if (context.rank() == 0) groups = sharding::describe_groups(*model, model->resolved_fsdp2_config().written_as);
    EXPECT_THAT(model->resolved_fsdp2_config().warnings, IsEmpty());
    EXPECT_TRUE(std::isfinite(step(*model, context.rank())));
    for (auto& [path, parameter] : model->named_parameters()) {
      EXPECT_EQ(parameter.grad().defined(), parameter.requires_grad()) << path;
    }
  });
  EXPECT_EQ(groups.substr(0, groups.find("(root) owns")), yaml.groups);
}

// A decoder layer: q, o 64 x 64, k, v 64 x 32, three biases, 3 x 64 x 172, two norms: 45568. A vision layer: 4 x
// (48 x 48 + 48), 2 x 48 x 96 + 144, two norms with bias, two scales: 19056. The root keeps the projector and the
// decoder's norm, 384 + 192 x 64 + 64 + 64 x 64 + 64 + 64 = 16960, and what else no entry names. On 8 ranks 172 rows
// are 8 x 22.
INSTANTIATE_TEST_SUITE_P(
    MultiModal, PublishedYaml,
    ::testing::Values(Yaml{"guide", 2, true, "/tests/sharding/data/migration_guide.yaml",
                           R"(1 x 2: shards over 2, replicates over 1
group                                parameters  gather KiB   padding  reshard  fwd-pref  bwd-pref
(root)                                    16960        33.1     0.00%     true  implicit  implicit
model.language_model.embed_tokens         16384        32.0     0.00%     true         2  implicit  as text_decoder.embedding
model.language_model.layers.0             45568        89.0     0.00%     true         2         1  as text_decoder.decoder.layers.0
model.language_model.layers.1             45568        89.0     0.00%     true         2         2  as text_decoder.decoder.layers.1
model.language_model.layers.2             45568        89.0     0.00%     true         2         2  as text_decoder.decoder.layers.2
model.language_model.rotary_emb               0         0.0     0.00%     true         1         2  as text_decoder.rotary_pos_emb
lm_head                                   16384        32.0     0.00%     true  implicit         2  as text_decoder.output_layer
)"},
                      Yaml{"shipped_ignored_vision", 2, true, "/configs/fsdp2/multimodal_ignored_vision.yaml",
                           R"(1 x 2: shards over 2, replicates over 1
group                                parameters  gather KiB   padding  reshard  fwd-pref  bwd-pref
(root)                                    16960        33.1     0.00%     true  implicit  implicit
model.language_model.embed_tokens         16384        32.0     0.00%     true         2  implicit  as text_decoder.embedding
model.language_model.layers.0             45568        89.0     0.00%     true         2         1  as text_decoder.decoder.layers.0
model.language_model.layers.1             45568        89.0     0.00%     true         2         2  as text_decoder.decoder.layers.1
model.language_model.layers.2             45568        89.0     0.00%     true         2         2  as text_decoder.decoder.layers.2
model.language_model.rotary_emb               0         0.0     0.00%     true         1         2  as text_decoder.rotary_pos_emb
lm_head                                   16384        32.0     0.00%     true  implicit         2  as text_decoder.output_layer
)"},
                      Yaml{"eight_ranks_prefetch_one", 8, false,
                           R"(sharding_size: 8
param_dtype: "bf16"
reduce_dtype: "bf16"
sub_modules_to_wrap:
  - "vision_model.encoder.layers.{*}"
  - "language_model.model.layers.{*}"
  - "lm_head"
reshard_after_forward: True
num_to_forward_prefetch: 1
num_to_backward_prefetch: 1
)",
                           R"(1 x 8: shards over 8, replicates over 1
group                                 parameters  gather KiB   padding  reshard  fwd-pref  bwd-pref
(root)                                     43472        96.7    12.21%     true  implicit  implicit
model.vision_tower.encoder.layer.0         19056        37.2     0.00%     true         1  implicit  as vision_model.encoder.layers.0
model.vision_tower.encoder.layer.1         19056        37.2     0.00%     true         1         1  as vision_model.encoder.layers.1
model.language_model.layers.0              45568        90.0     1.11%     true         1         1  as language_model.model.layers.0
model.language_model.layers.1              45568        90.0     1.11%     true         1         1  as language_model.model.layers.1
model.language_model.layers.2              45568        90.0     1.11%     true         1         1  as language_model.model.layers.2
lm_head                                    16384        32.0     0.00%     true  implicit         1
)"},
                      Yaml{"four_of_eight_no_prefetch", 8, true,
                           R"(sharding_size: 4
sub_modules_to_wrap:
  - "model.language_model.layers.{*}"
  - "text_decoder.output_layer"
param_dtype: bf16
reduce_dtype: fp32
cast_forward_inputs: True
ignored_modules:
  - "model.vision_tower"
num_to_forward_prefetch: 0
num_to_backward_prefetch: 0
)",
                           R"(2 x 4: shards over 4, replicates over 2
group                            parameters  gather KiB   padding  reshard  fwd-pref  bwd-pref
(root)                                33344        65.1     0.00%     true  implicit  implicit
model.language_model.layers.0         45568        89.0     0.00%     true  implicit  implicit
model.language_model.layers.1         45568        89.0     0.00%     true  implicit  implicit
model.language_model.layers.2         45568        89.0     0.00%     true  implicit  implicit
lm_head                               16384        32.0     0.00%     true  implicit  implicit  as text_decoder.output_layer
)"},
                      Yaml{"classes", 2, false,
                           R"(sharding_size: auto
sub_modules_to_wrap:
  - transformers.models.internvl.modeling_internvl.InternVLVisionLayer
  - transformers.models.qwen2.modeling_qwen2.Qwen2DecoderLayer
reduce_dtype: fp32
)",
                           R"(1 x 2: shards over 2, replicates over 1
group                                 parameters  gather KiB   padding  reshard  fwd-pref  bwd-pref
(root)                                     59856       237.2     1.42%     true  implicit  implicit
model.vision_tower.encoder.layer.0         19056        74.4     0.00%     true  implicit  implicit
model.vision_tower.encoder.layer.1         19056        74.4     0.00%     true  implicit  implicit
model.language_model.layers.0              45568       178.0     0.00%     true  implicit  implicit
model.language_model.layers.1              45568       178.0     0.00%     true  implicit  implicit
model.language_model.layers.2              45568       178.0     0.00%     true  implicit  implicit
)"},
                      Yaml{"only_a_size", 2, false, "sharding_size: auto\n", R"(1 x 2: shards over 2, replicates over 1
group                         parameters  gather KiB   padding  reshard  fwd-pref  bwd-pref
(root)                            234672       920.1     0.37%     true  implicit  implicit
)"}),
    [](const auto& info) { return info.param.name; });

TEST(MultiModalGroups, TheRootKeepsTheProjectorAndTheDecodersNorm) {
  test::run_world(2, [](RankContext&, comm::World& world) {
    const auto model = build(true);
    model->fully_shard(world, kSource / "tests/sharding/data/migration_guide.yaml", from_the_reference());
    std::vector<std::string> owned;
    for (const auto& param : sharding::FsdpState::of(*model)->group()->params()) owned.push_back(param->path());
    EXPECT_THAT(
        owned, ElementsAre("model.multi_modal_projector.layer_norm.weight",
                           "model.multi_modal_projector.layer_norm.bias", "model.multi_modal_projector.linear_1.weight",
                           "model.multi_modal_projector.linear_1.bias", "model.multi_modal_projector.linear_2.weight",
                           "model.multi_modal_projector.linear_2.bias", "model.language_model.norm.weight"));
  });
}

// --- Aliases in messages

std::string refusal(const std::string& text) {
  return test::message_of<ConfigError>([&] {
    resolve_fsdp2(*build(true), sharding::parse_fsdp2_config(text, "f.yaml"), 2, sharding::GatherLayout::kBuffered);
  });
}

TEST(MultiModalAliases, AreSaidBesideTheRealPath) {
  EXPECT_EQ(
      refusal("sub_modules_to_wrap: [text_decoder.decoder.layers]"),
      "f.yaml:1:23: sub_modules_to_wrap: 'model.language_model.layers' (written 'text_decoder.decoder.layers') is "
      "a ModuleList and has no forward of its own; wrap its items: 'text_decoder.decoder.layers.{*}'");
  EXPECT_EQ(refusal("sub_modules_to_wrap: [\"text_decoder.embedding.{*}\"]"),
            "f.yaml:1:23: sub_modules_to_wrap: 'text_decoder.embedding.{*}': 'model.language_model.embed_tokens' "
            "(written 'text_decoder.embedding') is a single module, not a list of modules; remove the braces");
  EXPECT_EQ(refusal("ignored_modules: [image_encodr]"),
            "f.yaml:1:19: ignored_modules: 'image_encodr': there is no such module; the nearest path is "
            "'image_encoder'");
}

TEST(MultiModalAliases, OfAnIgnoredTowerThatIsTrainedAreSaidInTheWarning) {
  const auto plan = resolve_fsdp2(
      *build(false), sharding::parse_fsdp2_config("sharding_size: 2\nignored_modules: [image_encoder]", "f.yaml"), 2,
      sharding::GatherLayout::kBuffered);
  EXPECT_THAT(plan.ignored, ElementsAre("model.vision_tower"));
  // 4 of the embeddings, 18 of each of two layers.
  EXPECT_THAT(plan.warnings,
              ElementsAre("ignored_modules: 'model.vision_tower.embeddings.cls_token' and 39 more below "
                          "'model.vision_tower' (written 'image_encoder') are trained, but ignored parameters are not "
                          "reduced: their values drift apart between ranks; freeze them"));
}

// --- The vision tower

const char* const kIgnored = R"(sharding_size: auto
sub_modules_to_wrap: ["text_decoder.decoder.layers.{*}"]
ignored_modules: [image_encoder]
param_dtype: bf16
)";

TEST(IgnoredTower, StaysTheTensorsItWas) {
  test::run_world(2, [](RankContext& context, comm::World& world) {
    const auto model = build(true);
    nn::materialize(*model);
    load_weights(*model, io::HfWeights(kCase));
    nn::Module& tower = *model->find("model.vision_tower");
    const std::vector<Tensor> before = tower.parameters();
    model->fully_shard(world, sharding::parse_fsdp2_config(kIgnored, "f.yaml"), from_the_reference());
    step(*model, context.rank());
    const auto slots = tower.named_slots();
    ASSERT_EQ(slots.size(), before.size());
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const nn::ParamSlot& slot = *slots[i].second;
      EXPECT_TRUE(slot.value.is_same(before[i])) << slots[i].first;
      EXPECT_EQ(slot.value.shape(), slot.shard.global_shape);
      EXPECT_EQ(slot.value.dtype(), DType::kF32);
      EXPECT_EQ(slot.value.storage()->place(), Place::kDevice);
      EXPECT_FALSE(slot.value.grad().defined());
    }
  });
}

TEST(IgnoredTower, BuiltOnTheMetaDeviceIsLoadedWholeOnEveryRank) {
  test::run_world(2, [](RankContext&, comm::World& world) {
    const auto model = build(true);
    model->fully_shard(world, sharding::parse_fsdp2_config(kIgnored, "f.yaml"), from_the_reference());
    const io::HfWeights weights(kCase);
    for (auto& [path, slot] : model->named_slots()) {
      if (!path.starts_with("model.vision_tower.")) continue;
      const io::StoredTensor& stored = weights.at(path);
      ASSERT_EQ(slot->value.shape(), stored.shape) << path;
      EXPECT_EQ(std::memcmp(slot->value.raw(), stored.bytes.data(), stored.bytes.size()), 0) << path;
    }
  });
}

TEST(IgnoredTower, WithoutValuesIsAnErrorThatNamesTheTensor) {
  test::run_world(1, [](RankContext& context, comm::World& world) {
    const auto model = build(true);
    const auto plan =
        resolve_fsdp2(*model, sharding::parse_fsdp2_config(kIgnored, "f.yaml"), 1, sharding::GatherLayout::kBuffered);
    sharding::parallelize(*model, plan, world);
    for (sharding::FsdpState* state : sharding::FsdpState::collect(*model)) {
      for (const auto& param : state->group()->params()) param->materialize_shard();
    }
    EXPECT_EQ(test::message_of<ConfigError>([&] { logits_of(*model, context.rank()); }),
              "parameter 'model.vision_tower.embeddings.cls_token' is ignored and has no values yet; initialise or "
              "load the weights before the first forward");
  });
}

TEST(IgnoredTower, GivesTheLossOfTheModelThatIsNotSharded) {
  for (const auto layout : {sharding::GatherLayout::kBuffered, sharding::GatherLayout::kFast}) {
    const auto losses = test::of_each_rank(2, [&](RankContext&, comm::World& world) {
      const auto whole = build(true);
      nn::materialize(*whole);
      load_weights(*whole, io::HfWeights(kCase));
      const auto model = build(true);
      model->fully_shard(
          world, sharding::parse_fsdp2_config("sharding_size: auto\nignored_modules: [vision_model]\n", "f.yaml"),
          from_the_reference(layout));
      return std::pair(step(*whole, 0), step(*model, 0));
    });
    for (const auto& [whole, sharded] : losses) EXPECT_EQ(whole, sharded);
  }
}

// Both ranks see the same batch, so the mean of their gradients is the gradient of one: (g + g) / 2 = g, bit for bit.
TEST(WrappedTower, TrainsWithTheGradientsOfTheModelThatIsNotSharded) {
  test::run_world(2, [](RankContext&, comm::World& world) {
    const auto whole = build(false);
    nn::materialize(*whole);
    load_weights(*whole, io::HfWeights(kCase));
    step(*whole, 0);
    const auto model = build(false);
    model->fully_shard(world,
                       sharding::parse_fsdp2_config("sharding_size: auto\nsub_modules_to_wrap:\n"
                                                    "  - \"vision_model.encoder.layers.{*}\"\n"
                                                    "  - \"text_decoder.decoder.layers.{*}\"\n",
                                                    "f.yaml"),
                       from_the_reference());
    step(*model, 0);
    const auto expected = whole->named_slots(), slots = model->named_slots();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const auto& [path, slot] = slots[i];
      ASSERT_TRUE(slot->value.grad().defined()) << path;
      const Tensor rows = expected[i].second->value.grad().rows(slot->shard.offset[0], slot->value.shape()[0]);
      EXPECT_EQ(slot->value.grad().to_vector<float>(), rows.to_vector<float>()) << path;
    }
  });
}

// The second rank's batch is text: its projector has no gradient.
TEST(Images, OnSomeRanksOnlyAreAnErrorNotAHang) {
  std::vector<std::string> messages(2);
  test::run_world(2, [&](RankContext& context, comm::World& world) {
    const auto model = build(true);
    model->fully_shard(world, sharding::parse_fsdp2_config(kIgnored, "f.yaml"), from_the_reference());
    const Tensor text = Tensor::host({1, 8}, DType::kI32);
    for (int i = 0; i < 8; ++i) text.data<std::int32_t>()[i] = 10 + i;
    try {
      Tensor logits = context.rank() == 0 ? logits_of(*model, 0) : (*model)(text).tensor();
      autograd::backward(ops::mean(logits));
      device::Device::current().synchronize();
    } catch (const Error& error) {
      messages[static_cast<std::size_t>(context.rank())] = error.what();
    }
  });
  EXPECT_THAT(messages[0], HasSubstr("rank 0 asks for reduce_scatter '', rank 1 for reduce_scatter ' without "
                                     "model.multi_modal_projector.layer_norm.weight, "));
  EXPECT_THAT(messages[1], HasSubstr("all members must make the same calls in the same order"));
}

TEST(ShardedDryRun, HasTheAccountsOfARealStep) {
  std::vector<device::MemStats> found;
  for (const bool dry : {false, true}) {
    found.push_back(test::of_each_rank(2,
                                       [](RankContext&, comm::World& world) {
                                         const auto model = build(true);
                                         model->fully_shard(
                                             world, kSource / "configs/fsdp2/multimodal_ignored_vision.yaml",
                                             {.layout = sharding::GatherLayout::kBuffered, .weights = {}});
                                         step(*model, 0);
                                         return device::Device::current().memory().stats();
                                       },
                                       {.dry_run = dry})
                        .front());
  }
  EXPECT_EQ(found[0].peak_bytes, found[1].peak_bytes);
  EXPECT_EQ(found[0].total_bytes, found[1].total_bytes);
}

}  // namespace
}  // namespace loom::models
