// Promise: fsdp2_config.yaml is read as MindSpeed-MM reads it, or refused with file, line, column, key, value and what
//          to write; nothing is silently dropped, and a size that does not fit the world fails alike on every rank.
// World:   a number of ranks; no rank runs.
#include "sharding/config/fsdp2_config.h"

#include <fmt/format.h>
#include <fstream>
#include <gmock/gmock.h>
#include <sstream>

#include "engine/core/error.h"
#include "sharding/config/fsdp2_keys.h"

namespace loom::sharding {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::filesystem::path kDataDir = LOOM_SOURCE_DIR "/tests/sharding/data";
const std::filesystem::path kSourceDir = LOOM_SOURCE_DIR;

Fsdp2Config parsed(std::string_view text) { return parse_fsdp2_config(text, "f.yaml"); }

template <class Act>
std::string refusal(Act act) {
  try {
    act();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

std::vector<std::string> texts(const std::vector<ModulePattern>& patterns) {
  std::vector<std::string> result;
  for (const ModulePattern& pattern : patterns) result.push_back(pattern.text());
  return result;
}

// --- Keys of our own

TEST(Fsdp2Config, LoraIsMindSpeedMMsBlock) {
  EXPECT_FALSE(parsed("sharding_size: 1\n").lora.enable);
  const LoraBlock defaults = parsed("lora:\n  enable: true\n").lora;
  EXPECT_TRUE(defaults.enable);
  EXPECT_EQ(defaults.rank, 8);
  EXPECT_EQ(defaults.alpha, 16);
  EXPECT_THAT(defaults.target_modules, ElementsAre("q_proj", "k_proj", "v_proj"));
  const LoraBlock block =
      parsed(
          "lora:\n  enable: true\n  rank: 4\n  alpha: 2.5\n  target_modules: ['model.{*}.o_proj']\n  dropout: 0.1\n"
          "  init_lora_weights: gaussian\n  pretrained_lora_path: tuned\n  disable_peft_moe_conversion: true\n")
          .lora;
  EXPECT_EQ(write_lora_block(block),
            "{enable: true, rank: 4, alpha: 2.5, target_modules: [model.{*}.o_proj], dropout: 0.1, init_lora_weights: "
            "gaussian, pretrained_lora_path: tuned}");
}

TEST(Fsdp2Config, LoraRefusesWhatItDoesNotTake) {
  const auto refused = [](std::string_view text) { return refusal([&] { parsed(text); }); };
  EXPECT_EQ(refused("lora:\n  rank: 0\n"), "f.yaml:2:9: lora.rank is 0; use a whole number of at least 1");
  EXPECT_EQ(refused("lora:\n  dropout: 1\n"), "f.yaml:2:12: lora.dropout is 1; use a number from 0 to below 1");
  EXPECT_EQ(refused("lora:\n  init_lora_weights: pissa_niter_4\n"),
            "f.yaml:2:22: lora.init_lora_weights is pissa_niter_4, which is not built; use true, false or gaussian");
  EXPECT_THAT(refused("lora:\n  target_modules: []\n"), ::testing::HasSubstr("lora.target_modules is"));
  EXPECT_THAT(refused("lora:\n  rnk: 4\n"), ::testing::HasSubstr("did you mean"));
  EXPECT_THAT(refused("lora: yes\n"), ::testing::HasSubstr("use a mapping with enable: true"));
}

TEST(Fsdp2Config, FreezeIsAListOfPatterns) {
  EXPECT_THAT(texts(parsed("freeze: [lm_head, 'model.layers.{0-3}']\n").freeze),
              ElementsAre("lm_head", "model.layers.{0-3}"));
  EXPECT_THAT(parsed("freeze:\n").freeze, IsEmpty());
}

// --- What is read

TEST(Fsdp2Config, TheMigrationGuidesExampleIsReadAsItIs) {
  std::ostringstream text;
  text << std::ifstream(kDataDir / "migration_guide.yaml").rdbuf();
  ASSERT_THAT(text.str(), ::testing::HasSubstr("sharding_size: auto\t\nsub_modules_to_wrap:\t\n"));
  ASSERT_THAT(text.str(), ::testing::HasSubstr("cast_forward_inputs: True\t\n"));

  const Fsdp2Config config = parse_fsdp2_config(text.str(), "migration_guide.yaml");
  EXPECT_EQ(config.sharding_size, Fsdp2Config::kAllRanks);
  EXPECT_THAT(texts(patterns_of(config.sub_modules_to_wrap)),
              ElementsAre("text_decoder.output_layer", "text_decoder.embedding", "text_decoder.rotary_pos_emb",
                          "text_decoder.decoder.layers.{*}"));
  EXPECT_EQ(config.param_dtype, DType::kBF16);
  EXPECT_EQ(config.reduce_dtype, DType::kF32);
  EXPECT_EQ(config.output_dtype, std::nullopt);
  EXPECT_TRUE(config.cast_forward_inputs);
  EXPECT_THAT(texts(config.ignored_modules), ElementsAre("image_encoder"));
  EXPECT_THAT(texts(config.recompute_modules), ElementsAre("text_decoder.decoder.layers.{*}"));
  EXPECT_EQ(config.num_to_forward_prefetch, 2);
  EXPECT_EQ(config.num_to_backward_prefetch, 2);
  EXPECT_FALSE(config.offload_to_cpu);
  // Its wrap entries stand on lines 3 to 6, after `  - `.
  EXPECT_EQ(config.sub_modules_to_wrap.back().mark().text(), "migration_guide.yaml:6:5");
  EXPECT_EQ(config.sub_modules_to_wrap.back().modules.front().key(), "sub_modules_to_wrap");
}

TEST(Fsdp2Config, AKeyThatIsNotGivenHasTheGuidesDefault) {
  const Fsdp2Config config = parsed("{}");
  EXPECT_EQ(config.sharding_size, 1);
  EXPECT_EQ(config.param_dtype, std::nullopt);
  EXPECT_EQ(config.reduce_dtype, std::nullopt);
  EXPECT_EQ(config.output_dtype, std::nullopt);
  EXPECT_TRUE(config.cast_forward_inputs);
  EXPECT_THAT(config.sub_modules_to_wrap, IsEmpty());
  EXPECT_THAT(config.ignored_modules, IsEmpty());
  EXPECT_THAT(config.recompute_modules, IsEmpty());
  EXPECT_TRUE(config.use_reentrant);
  EXPECT_EQ(config.recompute_keep, RecomputeKeep::kNone);
  EXPECT_EQ(config.recompute_every, 1);
  EXPECT_EQ(config.reshard_after_forward, ReshardAfterForward(true));
  EXPECT_FALSE(config.offload_to_cpu);
  EXPECT_FALSE(config.pin_memory);
  EXPECT_EQ(config.num_to_forward_prefetch, 0);
  EXPECT_EQ(config.num_to_backward_prefetch, 0);
  EXPECT_FALSE(config.align_fsdp_param_groups);
  EXPECT_EQ(config.expert_parallel_size, 1);
  EXPECT_TRUE(config.reshard_local_experts);
  EXPECT_THAT(config.moe_modules, IsEmpty());
}

TEST(Fsdp2Config, EveryKeyIsRead) {
  const Fsdp2Config config = parsed(R"(
sharding_size: 4
param_dtype: bf16
reduce_dtype: "fp32"
output_dtype: fp16
cast_forward_inputs: false
sub_modules_to_wrap: [lm_head, "model.layers.{0-20,22-40}"]
ignored_modules: [vision]
recompute_modules: ["model.layers.{*}"]
use_reentrant: False
recompute_keep: selected_ops_needed
recompute_every: 2
reshard_after_forward: 2
offload_to_cpu: True
pin_memory: true
num_to_forward_prefetch: 3
num_to_backward_prefetch: 1
align_fsdp_param_groups: true
expert_parallel_size: 2
reshard_local_experts: false
moe_modules: ["model.layers.{*}.mlp.experts"]
moe_token_dispatcher_type: allgather
moe_shared_expert_overlap: true
)");
  EXPECT_EQ(config.sharding_size, 4);
  EXPECT_EQ(config.param_dtype, DType::kBF16);
  EXPECT_EQ(config.reduce_dtype, DType::kF32);
  EXPECT_EQ(config.output_dtype, DType::kF16);
  EXPECT_FALSE(config.cast_forward_inputs);
  EXPECT_THAT(texts(patterns_of(config.sub_modules_to_wrap)), ElementsAre("lm_head", "model.layers.{0-20,22-40}"));
  EXPECT_THAT(texts(config.ignored_modules), ElementsAre("vision"));
  EXPECT_THAT(texts(config.recompute_modules), ElementsAre("model.layers.{*}"));
  EXPECT_FALSE(config.use_reentrant);
  EXPECT_EQ(config.recompute_keep, RecomputeKeep::kSelectedOpsNeeded);
  EXPECT_EQ(config.recompute_every, 2);
  EXPECT_EQ(config.reshard_after_forward, ReshardAfterForward(2));
  EXPECT_TRUE(config.offload_to_cpu);
  EXPECT_TRUE(config.pin_memory);
  EXPECT_EQ(config.num_to_forward_prefetch, 3);
  EXPECT_EQ(config.num_to_backward_prefetch, 1);
  EXPECT_TRUE(config.align_fsdp_param_groups);
  EXPECT_EQ(config.expert_parallel_size, 2);
  EXPECT_FALSE(config.reshard_local_experts);
  EXPECT_THAT(texts(config.moe_modules), ElementsAre("model.layers.{*}.mlp.experts"));
  EXPECT_EQ(config.moe_token_dispatcher_type, TokenDispatcher::kAllGather);
  EXPECT_TRUE(config.moe_shared_expert_overlap);
  EXPECT_EQ(config.places.size(), 22u);
}

// Of every key: what is written is read as the same value, and one that is not the default is told apart from it.
TEST(Fsdp2Keys, ValuesAreWrittenAsTheyAreRead) {
  const std::map<std::string, std::string> values = {{"sharding_size", "auto"},
                                                     {"param_dtype", "bf16"},
                                                     {"reduce_dtype", "fp32"},
                                                     {"output_dtype", "fp16"},
                                                     {"cast_forward_inputs", "false"},
                                                     {"sub_modules_to_wrap", "[lm_head, \"layers.{0-2}\"]"},
                                                     {"ignored_modules", "[vision]"},
                                                     {"recompute_modules", "[a, b]"},
                                                     {"use_reentrant", "false"},
                                                     {"recompute_keep", "selected_ops"},
                                                     {"recompute_every", "2"},
                                                     {"reshard_after_forward", "2"},
                                                     {"offload_to_cpu", "true"},
                                                     {"pin_memory", "true"},
                                                     {"activation_offload_modules", "[a, b]"},
                                                     {"num_to_forward_prefetch", "3"},
                                                     {"num_to_backward_prefetch", "1"},
                                                     {"chunk_mbs_modules", "[a]"},
                                                     {"chunk_mbs", "2"},
                                                     {"chunk_arg_indexs", "[0, 2]"},
                                                     {"chunk_kwarg_names", "[mask, positions]"},
                                                     {"align_fsdp_param_groups", "true"},
                                                     {"expert_parallel_size", "2"},
                                                     {"reshard_local_experts", "false"},
                                                     {"moe_token_dispatcher_type", "allgather"},
                                                     {"moe_shared_expert_overlap", "true"},
                                                     {"ulysses_parallel_size", "2"},
                                                     {"ring_attention_size", "4"},
                                                     {"ring_rotate_method", "kvallgather"},
                                                     {"tensor_parallel_size", "2"},
                                                     {"sequence_parallel", "true"},
                                                     {"overlap_slices", "2"},
                                                     {"regather_colwise_input", "true"},
                                                     {"loss_parallel", "false"},
                                                     {"colwise_parallel", "[\"layers.{*}.q_proj\"]"},
                                                     {"rowwise_parallel", "[\"layers.{*}.o_proj\"]"},
                                                     {"root_reshard_after_forward", "2"},
                                                     {"reshard_after_backward", "false"},
                                                     {"sync_each_batch", "false"},
                                                     {"prefetch_order", "list"},
                                                     {"recompute_children", "true"},
                                                     {"hook_modules", "[\"layers.{*}\"]"},
                                                     {"pregather", "true"},
                                                     {"moe_modules", "[experts]"},
                                                     {"freeze", "[embed, \"layers.{0-2}\"]"},
                                                     {"lora",
                                                      "{enable: true, rank: 4, alpha: 6.5, target_modules: [q_proj], "
                                                      "dropout: 0.25, init_lora_weights: gaussian, "
                                                      "pretrained_lora_path: tuned}"}};
  for (const Fsdp2Key& key : fsdp2_keys()) {
    const std::string& value = values.at(std::string(key.name));
    const Fsdp2Config config = parsed(fmt::format("{}: {}", key.name, value));
    EXPECT_EQ(key.write(config), value);
    EXPECT_FALSE(same_value(key, config, Fsdp2Config{})) << key.name;
    EXPECT_FALSE(same_values(config, Fsdp2Config{})) << key.name;
    Fsdp2Config copy;
    key.copy(config, copy);
    EXPECT_TRUE(same_values(config, copy)) << key.name;
  }
  EXPECT_EQ(fsdp2_keys().size(), values.size());
}

TEST(Fsdp2Config, BooleansAreThoseOfPythonsYaml) {
  for (const char* word : {"true", "True", "TRUE", "yes", "on"}) {
    EXPECT_TRUE(parsed(fmt::format("offload_to_cpu: {}", word)).offload_to_cpu) << word;
  }
  for (const char* word : {"false", "False", "FALSE", "no", "off"}) {
    EXPECT_FALSE(parsed(fmt::format("use_reentrant: {}", word)).use_reentrant) << word;
  }
}

TEST(Fsdp2Config, NullIsNotGivenWhereThereIsNoDefault) {
  const Fsdp2Config config = parsed("param_dtype: null\noutput_dtype: ~\nignored_modules:\nmoe_modules: null\n");
  EXPECT_EQ(config.param_dtype, std::nullopt);
  EXPECT_EQ(config.output_dtype, std::nullopt);
  EXPECT_THAT(config.ignored_modules, IsEmpty());
}

TEST(Fsdp2Config, ANullShardingSizeIsItsDefault) {
  for (const char* text : {"sharding_size: null\nparam_dtype: bf16\n", "sharding_size:\nparam_dtype: bf16\n"}) {
    EXPECT_EQ(parsed(text).sharding_size, 1);
    EXPECT_FALSE(parsed(text).places.contains("sharding_size")) << "as if it were left out";
  }
}

TEST(Fsdp2Config, WindowsLineEndsAndTabsBeforeCommentsAreReadOver) {
  EXPECT_EQ(parsed("sharding_size:\t2\t# two\r\nparam_dtype: bf16\t\r\n").param_dtype, DType::kBF16);
}

TEST(Fsdp2Config, TheQuickstartFileIsFitForThisVersion) {
  const Fsdp2Config config = load_fsdp2_config(kSourceDir / "configs/fsdp2/quickstart.yaml");
  const WorldLayout layout = validate_against_world(config, 4);
  EXPECT_EQ(layout.shard, 4);
  EXPECT_THAT(layout.warnings, IsEmpty());
  EXPECT_THAT(texts(patterns_of(config.sub_modules_to_wrap)),
              ElementsAre("model.embed_tokens", "model.layers.{*}", "lm_head"));
}

// --- Groups

TEST(Fsdp2Config, AListInsideTheListIsOneGroup) {
  const auto entries = parsed("sub_modules_to_wrap:\n  - \"layers.{*}\"\n  - [norm, lm_head]\n").sub_modules_to_wrap;
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_FALSE(entries[0].is_one_group);
  EXPECT_TRUE(entries[1].is_one_group);
  EXPECT_THAT(texts(entries[1].modules), ElementsAre("norm", "lm_head"));
  EXPECT_EQ(entries[1].mark().text(), "f.yaml:3:6");
  EXPECT_EQ(entries[1].reshard_after_forward, std::nullopt);
}

TEST(Fsdp2Config, AnEntryMayChooseItsOwnReshard) {
  const auto entries = parsed(
                           "sub_modules_to_wrap:\n"
                           "  - modules: [norm, lm_head]\n    reshard_after_forward: false\n"
                           "  - {modules: \"layers.{0-1}\", reshard_after_forward: 2}\n")
                           .sub_modules_to_wrap;
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_TRUE(entries[0].is_one_group);
  EXPECT_EQ(entries[0].reshard_after_forward, ReshardAfterForward(false));
  EXPECT_FALSE(entries[1].is_one_group);
  EXPECT_EQ(entries[1].reshard_after_forward, ReshardAfterForward(2));
}

TEST(Fsdp2Config, GroupsAreWrittenAsTheyAreRead) {
  const std::string text =
      "[embed, \"layers.{*}\", [norm, \"heads.{0,2}\"], {modules: [a], reshard_after_forward: 4}, "
      "{modules: \"b.{*}\", reshard_after_forward: false}]";
  const Fsdp2Key& key = fsdp2_key("sub_modules_to_wrap");
  const std::string written = key.write(parsed("sub_modules_to_wrap: " + text));
  EXPECT_EQ(written, text);
  EXPECT_EQ(key.write(parsed("sub_modules_to_wrap: " + written)), written);
}

TEST(Fsdp2Config, AGroupsReshardMustFitItsRanks) {
  EXPECT_EQ(refusal([] {
              validate_against_world(
                  parsed("sharding_size: 4\nsub_modules_to_wrap:\n  - {modules: a, reshard_after_forward: 3}"), 4);
            }),
            "f.yaml:3:15: reshard_after_forward is 3, but a shard group has 4 ranks; use 1, 2, 4, true or false");
  EXPECT_EQ(refusal([] { validate_against_world(parsed("sharding_size: 4\nroot_reshard_after_forward: 3"), 4); }),
            "f.yaml:2:29: root_reshard_after_forward is 3, but a shard group has 4 ranks; use 1, 2, 4, true or false");
  const WorldLayout layout = validate_against_world(parsed("sharding_size: 4\nreshard_after_forward: 2"), 4);
  EXPECT_EQ(layout.root_reshard_after_forward, ReshardAfterForward(2));
}

// --- What is refused

struct Bad {
  std::string text;
  std::string message;
};

void PrintTo(const Bad& bad, std::ostream* out) { *out << bad.text; }

class BadConfig : public ::testing::TestWithParam<Bad> {};

TEST_P(BadConfig, IsRefusedWithItsPlaceAndWhatToWrite) {
  EXPECT_EQ(refusal([] { parsed(GetParam().text); }), GetParam().message) << GetParam().text;
}

constexpr const char* kSizes = "; use a whole number of at least 1, or auto (all ranks)";

INSTANTIATE_TEST_SUITE_P(
    ShardingSize, BadConfig,
    ::testing::Values(
        Bad{"sharding_size: 0", fmt::format("f.yaml:1:16: sharding_size is 0{}", kSizes)},
        Bad{"sharding_size: -1", fmt::format("f.yaml:1:16: sharding_size is -1{}", kSizes)},
        Bad{"sharding_size: 2.0", fmt::format("f.yaml:1:16: sharding_size is 2.0{}", kSizes)},
        Bad{"sharding_size: full", fmt::format("f.yaml:1:16: sharding_size is full{}", kSizes)},
        Bad{"sharding_size: Auto", fmt::format("f.yaml:1:16: sharding_size is Auto{}", kSizes)},
        Bad{"sharding_size: \"4\"", fmt::format("f.yaml:1:16: sharding_size is \"4\"{}", kSizes)},
        Bad{"sharding_size: true", fmt::format("f.yaml:1:16: sharding_size is true{}", kSizes)},
        Bad{"sharding_size: 010", fmt::format("f.yaml:1:16: sharding_size is 010{}", kSizes)},
        Bad{"sharding_size: 99999999999", fmt::format("f.yaml:1:16: sharding_size is 99999999999{}", kSizes)},
        Bad{"sharding_size: [4]", fmt::format("f.yaml:1:16: sharding_size is a list{}", kSizes)},
        Bad{"sharding_size: {n: 4}", fmt::format("f.yaml:1:16: sharding_size is a mapping{}", kSizes)},
        Bad{"sharding_size: !!int 4",
            fmt::format("f.yaml:1:16: sharding_size is a value with the tag tag:yaml.org,2002:int{}", kSizes)},
        Bad{"sharding_size: .inf", fmt::format("f.yaml:1:16: sharding_size is .inf{}", kSizes)}));

constexpr const char* kFloats = "; use bf16, fp16, fp32 or fp64";

INSTANTIATE_TEST_SUITE_P(
    Dtypes, BadConfig,
    ::testing::Values(Bad{"param_dtype: bfloat16", fmt::format("f.yaml:1:14: param_dtype is bfloat16{}", kFloats)},
                      Bad{"param_dtype: BF16", fmt::format("f.yaml:1:14: param_dtype is BF16{}", kFloats)},
                      Bad{"param_dtype: 16", fmt::format("f.yaml:1:14: param_dtype is 16{}", kFloats)},
                      Bad{"param_dtype: \"\"", fmt::format("f.yaml:1:14: param_dtype is \"\"{}", kFloats)},
                      Bad{"param_dtype: [bf16]", fmt::format("f.yaml:1:14: param_dtype is a list{}", kFloats)},
                      Bad{"param_dtype: \"bf16\n",
                          "f.yaml:1:14: not readable as YAML (the quote that opens here is not closed); check "
                          "indentation, colons and quotes here and in the line above"},
                      Bad{"param_dtype: int8",
                          fmt::format("f.yaml:1:14: param_dtype is int8, which is not a floating type{}", kFloats)},
                      Bad{"reduce_dtype: int64",
                          fmt::format("f.yaml:1:15: reduce_dtype is int64, which is not a floating type{}", kFloats)},
                      Bad{"output_dtype: bool",
                          fmt::format("f.yaml:1:15: output_dtype is bool, which is not a floating type{}", kFloats)}));

constexpr const char* kBools = "; use true or false, without quotes";

INSTANTIATE_TEST_SUITE_P(
    Booleans, BadConfig,
    ::testing::Values(
        Bad{"cast_forward_inputs: \"true\"", fmt::format("f.yaml:1:22: cast_forward_inputs is \"true\"{}", kBools)},
        Bad{"recompute_keep: all",
            "f.yaml:1:17: recompute_keep is all; use none, attention, selected_ops or selected_ops_needed"},
        Bad{"recompute_every: 0", "f.yaml:1:18: recompute_every is 0; use a whole number of at least 1"},
        Bad{"use_reentrant: 1", fmt::format("f.yaml:1:16: use_reentrant is 1{}", kBools)},
        Bad{"offload_to_cpu: maybe", fmt::format("f.yaml:1:17: offload_to_cpu is maybe{}", kBools)},
        Bad{"pin_memory: [true]", fmt::format("f.yaml:1:13: pin_memory is a list{}", kBools)},
        Bad{"align_fsdp_param_groups: y", fmt::format("f.yaml:1:26: align_fsdp_param_groups is y{}", kBools)},
        Bad{"reshard_local_experts:",
            "f.yaml:1:1: reshard_local_experts is empty; use true or false, without quotes, or remove the key"}));

INSTANTIATE_TEST_SUITE_P(
    Numbers, BadConfig,
    ::testing::Values(
        Bad{"reshard_after_forward: 0",
            "f.yaml:1:24: reshard_after_forward is 0; use true, false or a number of ranks of at least 1"},
        Bad{"reshard_after_forward: half",
            "f.yaml:1:24: reshard_after_forward is half; use true, false or a number of ranks of at least 1"},
        Bad{"reshard_after_forward: \"False\"",
            "f.yaml:1:24: reshard_after_forward is \"False\"; use true, false or a number of ranks of at least 1"},
        Bad{"num_to_forward_prefetch: -1",
            "f.yaml:1:26: num_to_forward_prefetch is -1; use a whole number of at least 0"},
        Bad{"num_to_forward_prefetch: 1.5",
            "f.yaml:1:26: num_to_forward_prefetch is 1.5; use a whole number of at least 0"},
        Bad{"num_to_backward_prefetch: all",
            "f.yaml:1:27: num_to_backward_prefetch is all; use a whole number of at least 0"},
        Bad{"num_to_backward_prefetch: null",
            "f.yaml:1:1: num_to_backward_prefetch is empty; use a whole number of at least 0, or remove the key"},
        Bad{"expert_parallel_size: 0", "f.yaml:1:23: expert_parallel_size is 0; use a whole number of at least 1"},
        Bad{"expert_parallel_size: auto",
            "f.yaml:1:23: expert_parallel_size is auto; use a whole number of at least 1"}));

constexpr const char* kLists = "; use a list of module paths, each on a line of its own after '- '";

INSTANTIATE_TEST_SUITE_P(
    Lists, BadConfig,
    ::testing::Values(
        Bad{"sub_modules_to_wrap: lm_head", fmt::format("f.yaml:1:22: sub_modules_to_wrap is lm_head{}", kLists)},
        Bad{"ignored_modules: {a: b}", fmt::format("f.yaml:1:18: ignored_modules is a mapping{}", kLists)},
        Bad{"recompute_modules: true", fmt::format("f.yaml:1:20: recompute_modules is true{}", kLists)},
        Bad{"activation_offload_modules: 3", fmt::format("f.yaml:1:29: activation_offload_modules is 3{}", kLists)},
        Bad{"moe_modules: \"a\"", fmt::format("f.yaml:1:14: moe_modules is \"a\"{}", kLists)},
        Bad{"sub_modules_to_wrap:\nsharding_size: 1",
            fmt::format("f.yaml:1:1: sub_modules_to_wrap is empty{}, or remove the key", kLists)},
        Bad{"sub_modules_to_wrap:\n  - a\n  -\n  - b",
            "f.yaml:1:1: sub_modules_to_wrap has nothing at entry 2; name a module or remove the entry"},
        Bad{"ignored_modules:\n  - a\n  - [b]",
            "f.yaml:3:5: ignored_modules has a list as entry 2; use a module path, as in \"layers.{*}\""},
        Bad{"sub_modules_to_wrap:\n  - []",
            "f.yaml:2:5: sub_modules_to_wrap has an empty list as entry 1; name the modules of the group or remove the "
            "entry"},
        Bad{"sub_modules_to_wrap:\n  - [a, [b]]",
            "f.yaml:2:9: sub_modules_to_wrap has a list as entry 2; use a module path, as in \"layers.{*}\""},
        Bad{"sub_modules_to_wrap:\n  - {reshard_after_forward: false}",
            "f.yaml:2:5: sub_modules_to_wrap has a mapping without 'modules' as entry 1; write {modules: [...], "
            "reshard_after_forward: false}"},
        Bad{"sub_modules_to_wrap:\n  - {module: a}",
            "f.yaml:2:6: unknown key 'sub_modules_to_wrap[0].module'; did you mean modules?"},
        Bad{"sub_modules_to_wrap:\n  - {modules: a, reshard_after_forward: 0}",
            "f.yaml:2:41: sub_modules_to_wrap[0].reshard_after_forward is 0; use true, false or a number of ranks of at "
            "least 1"},
        Bad{"sub_modules_to_wrap:\n  - {0-3}",
            "f.yaml:2:5: sub_modules_to_wrap has a mapping as entry 1; put a pattern with braces in quotes, as in "
            "\"layers.{*}\""},
        Bad{"sub_modules_to_wrap:\n  - \"a.{*}.b.{*}\"",
            "f.yaml:2:5: sub_modules_to_wrap: 'a.{*}.b.{*}' has more than one brace group; write one entry for each "
            "value of "
            "the first group"},
        Bad{"sharding_size: 1\nignored_modules:\n- \"\"",
            "f.yaml:3:3: ignored_modules: '' is empty and would mean the model itself; name a module or remove the "
            "entry"},
        Bad{"moe_modules: [a, \"b.{x}\"]",
            "f.yaml:1:18: moe_modules: 'b.{x}' has 'x' between its braces, which is neither an index nor a range; "
            "write {*}, "
            "{0-23} or {0-3,8}"}));

INSTANTIATE_TEST_SUITE_P(
    Keys, BadConfig,
    ::testing::Values(
        Bad{"shard_size: 4", "f.yaml:1:1: unknown key 'shard_size'; did you mean sharding_size?"},
        Bad{"sharding_size: 1\nParam_dtype: bf16", "f.yaml:2:1: unknown key 'Param_dtype'; did you mean param_dtype?"},
        Bad{"shard_size: 4\nnum_to_forward_prefetch: -1\npin_memory: true\nparam_dtype: half",
            "f.yaml: 3 keys are refused:\n"
            "  f.yaml:1:1: unknown key 'shard_size'; did you mean sharding_size?\n"
            "  f.yaml:2:26: num_to_forward_prefetch is -1; use a whole number of at least 0\n"
            "  f.yaml:4:14: param_dtype is half; use bf16, fp16, fp32 or fp64"},
        Bad{"  num_forward_prefetch: 1",
            "f.yaml:1:3: unknown key 'num_forward_prefetch'; did you mean num_to_forward_prefetch?"},
        Bad{"precision: bf16",
            "f.yaml:1:1: unknown key 'precision'; the keys are sharding_size, param_dtype, reduce_dtype, output_dtype, "
            "cast_forward_inputs, sub_modules_to_wrap, hook_modules, pregather, ignored_modules, recompute_modules, use_reentrant, "
            "recompute_keep, recompute_every, recompute_children, "
            "reshard_after_forward, root_reshard_after_forward, reshard_after_backward, sync_each_batch, offload_to_cpu, pin_memory, activation_offload_modules, num_to_forward_prefetch, "
            "num_to_backward_prefetch, prefetch_order, chunk_mbs_modules, chunk_mbs, chunk_arg_indexs, chunk_kwarg_names, "
            "align_fsdp_param_groups, expert_parallel_size, reshard_local_experts, moe_modules, "
            "moe_token_dispatcher_type, moe_shared_expert_overlap, ulysses_parallel_size, "
            "ring_attention_size, ring_rotate_method, tensor_parallel_size, sequence_parallel, overlap_slices, "
            "regather_colwise_input, loss_parallel, "
            "colwise_parallel, rowwise_parallel, freeze, lora"},
        Bad{"sharding_size: 2\nparam_dtype: bf16\nsharding_size: 2",
            "f.yaml:3:1: sharding_size is given again, first at line 1; keep one"},
        Bad{"fully_shard_parallel_size: auto",
            "f.yaml:1:1: 'fully_shard_parallel_size' is a key of another FSDP2 dialect; write sharding_size"},
        Bad{"fsdp_modules: [a]",
            "f.yaml:1:1: 'fsdp_modules' is a key of another FSDP2 dialect; write sub_modules_to_wrap"},
        Bad{"parallel:\n  fsdp_plan: {}",
            "f.yaml:1:1: 'parallel' is a section of another FSDP2 dialect; write the keys of fsdp2_config.yaml at the "
            "top "
            "level"},
        Bad{"? [a]\n: b", "f.yaml:1:3: a key is a list; write key: value lines"}));

constexpr const char* kLookHere = "; check indentation, colons and quotes here and in the line above";

INSTANTIATE_TEST_SUITE_P(
    Files, BadConfig,
    ::testing::Values(
        Bad{"", "f.yaml: the file has no keys; write at least sharding_size: auto"},
        Bad{"# only a comment\n", "f.yaml: the file has no keys; write at least sharding_size: auto"},
        Bad{"- sharding_size", "f.yaml:1:1: the file is a list; write key: value lines"},
        Bad{"sharding_size", "f.yaml:1:1: the file is a single value; write key: value lines"},
        Bad{"sharding_size: 1\n---\nsharding_size: 2",
            "f.yaml:2:1: a second YAML document begins here; keep one document of key: value lines"},
        Bad{", b\n", "f.yaml:1:1: a second YAML document begins here; keep one document of key: value lines"},
        Bad{"sharding_size: 1\n, b: 2\n",
            fmt::format("f.yaml:2:1: not readable as YAML (the line belongs to no key above it){}", kLookHere)},
        Bad{"moe_modules: " + std::string(5000, '['),
            fmt::format("f.yaml:2:1: not readable as YAML (values are nested too deeply){}", kLookHere)},
        Bad{"sharding_size: 1\n\tparam_dtype: bf16",
            fmt::format("f.yaml:2:1: not readable as YAML (a tab indents the line; use spaces){}", kLookHere)},
        Bad{"sharding_size: 1\n param_dtype: bf16",
            fmt::format("f.yaml:2:13: not readable as YAML (a colon is not allowed here: no value can follow){}",
                        kLookHere)},
        Bad{"moe_modules: [a", fmt::format("f.yaml:2:1: not readable as YAML (a [ is not closed with ]){}", kLookHere)},
        Bad{"moe_modules: [layers.{*}]",
            "f.yaml:1:24: not readable as YAML (alias not found after *); put a pattern with {*} in quotes"}));

TEST(Fsdp2Config, AMissingFileIsNamed) {
  EXPECT_EQ(refusal([] { load_fsdp2_config("nowhere/f.yaml"); }),
            "nowhere/f.yaml: No such file or directory; give the path of an existing YAML file");
}

TEST(Fsdp2Config, AFolderIsNoFile) {
  EXPECT_EQ(refusal([] { load_fsdp2_config("."); }), ".: is a folder; give the path of the YAML file itself");
}

// --- Fitting the world

WorldLayout layout_of(std::string_view text, int world_size) {
  return validate_against_world(parsed(text), world_size);
}

TEST(WorldLayout, ShardingSizeSplitsTheWorldIntoReplicasOfShardGroups) {
  struct Case {
    const char* text;
    int world_size, replicate, shard;
  };
  for (const Case& c : {Case{"sharding_size: auto", 4, 1, 4}, Case{"sharding_size: auto", 1, 1, 1},
                        Case{"sharding_size: 2", 4, 2, 2}, Case{"sharding_size: 8", 8192, 1024, 8},
                        Case{"sharding_size: 1", 4, 4, 1}, Case{"sharding_size: 4", 4, 1, 4}}) {
    const WorldLayout layout = layout_of(c.text, c.world_size);
    EXPECT_EQ(layout.replicate, c.replicate) << c.text;
    EXPECT_EQ(layout.shard, c.shard) << c.text;
  }
}

TEST(WorldLayout, AShardingSizeThatDoesNotDivideTheWorldIsRefused) {
  EXPECT_EQ(refusal([] { layout_of("sharding_size: 3", 4); }),
            "f.yaml:1:16: sharding_size is 3, but 4 ranks are running; use 1, 2, 4 or auto (all ranks)");
  EXPECT_EQ(refusal([] { layout_of("sharding_size: 8", 4); }),
            "f.yaml:1:16: sharding_size is 8, but 4 ranks are running; use 1, 2, 4 or auto (all ranks)");
  EXPECT_EQ(refusal([] { layout_of("sharding_size: 2", 1); }),
            "f.yaml:1:16: sharding_size is 2, but 1 rank is running; use 1 or auto (all ranks)");
}

TEST(WorldLayout, WarnsWhenNothingIsSharded) {
  EXPECT_THAT(
      layout_of("sharding_size: 1", 4).warnings,
      ElementsAre("f.yaml:1:16: sharding_size is 1, so nothing is sharded: each of the 4 ranks holds the whole model; "
                  "use auto to shard over all ranks"));
  EXPECT_THAT(
      layout_of("param_dtype: bf16", 4).warnings,
      ElementsAre("f.yaml: sharding_size is 1 (the default), so nothing is sharded: each of the 4 ranks holds the "
                  "whole model; use auto to shard over all ranks"));
  EXPECT_THAT(layout_of("sharding_size: 1", 1).warnings, IsEmpty());
}

TEST(WorldLayout, AnIntegerReshardIsFalseAtOneAndTrueAtTheShardSize) {
  struct Case {
    const char* value;
    ReshardAfterForward reshard;
  };
  for (const Case& c : {Case{"true", true}, Case{"false", false}, Case{"1", false}, Case{"2", 2}, Case{"4", true}}) {
    const WorldLayout layout = layout_of(fmt::format("sharding_size: 4\nreshard_after_forward: {}", c.value), 8);
    EXPECT_EQ(layout.reshard_after_forward, c.reshard) << c.value;
  }
}

TEST(WorldLayout, AnIntegerReshardThatDoesNotDivideTheShardGroupIsRefused) {
  EXPECT_EQ(refusal([] { layout_of("sharding_size: auto\nreshard_after_forward: 3", 4); }),
            "f.yaml:2:24: reshard_after_forward is 3, but a shard group has 4 ranks; use 1, 2, 4, true or false");
  EXPECT_EQ(refusal([] { layout_of("reshard_after_forward: 2", 4); }),
            "f.yaml:1:24: reshard_after_forward is 2, but a shard group has 1 rank; use 1, true or false");
}

TEST(WorldLayout, AnExpertParallelSizeThatDoesNotDivideTheWorldIsRefused) {
  EXPECT_EQ(refusal([] { layout_of("expert_parallel_size: 3", 4); }),
            "f.yaml:1:23: expert_parallel_size is 3, but 4 ranks are running; use 1, 2 or 4");
}

TEST(WorldLayout, WarnsOfPinnedMemoryWithoutOffload) {
  EXPECT_THAT(layout_of("sharding_size: auto\npin_memory: True", 2).warnings,
              ElementsAre("f.yaml:2:13: pin_memory is true, but offload_to_cpu is not, so nothing is pinned"));
  EXPECT_THAT(layout_of("sharding_size: auto\npin_memory: True\nactivation_offload_modules: [a]", 2).warnings,
              IsEmpty());
}

}  // namespace
}  // namespace loom::sharding
