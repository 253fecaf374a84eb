// Promise: accelerate's file, and fsdp_config of transformers, are the FSDP2 job that those make; what differs in
//          groups is said; files of FSDP1 are read as their nearest FSDP2 file, and that is said.
// World:   8 ranks, Qwen3 with two layers.
#include "tests/dialects/models.h"
#include "tests/dialects/translated.h"

namespace loom::dialects {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Asked with_model(Asked asked = {}) {
  asked.flags["--model-config"] = (qwen3_folder() / "config.json").string();
  return asked;
}

const std::string kSecond =
    "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\n"
    "fsdp_config:\n  fsdp_version: 2\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n";

// The final norm and the output layer are one group.
constexpr const char* kWithEnds =
    "[Qwen3DecoderLayer, model.embed_tokens, {modules: [model.norm, lm_head], reshard_after_forward: false}]";

TEST(Accelerate, ComputesAndReducesInBf16AndWrapsLayersAndEmbedding) {
  const Translation file = read(kSecond, with_model({.world = 0}));
  EXPECT_THAT(file.refused, IsEmpty());
  EXPECT_EQ(file.world, 8);
  for (const char* key : {"param_dtype", "reduce_dtype", "output_dtype"}) EXPECT_EQ(key_in(file, key), "bf16");
  EXPECT_EQ(key_in(file, "sub_modules_to_wrap"), kWithEnds);
  EXPECT_EQ(key_in(file, "sharding_size"), "auto");
  EXPECT_EQ(key_in(file, "reshard_after_forward"), "true");
  EXPECT_EQ(key_in(file, "root_reshard_after_forward"), "false");
}

TEST(Accelerate, CheckpointingRecomputesTheChildrenOfALayer) {
  const Translation file = read(kSecond + "  fsdp_activation_checkpointing: true\n", with_model());
  EXPECT_EQ(key_in(file, "recompute_modules"), "[Qwen3DecoderLayer]");
  EXPECT_EQ(key_in(file, "recompute_children"), "true");
  EXPECT_EQ(key_in(file, "use_reentrant"), "false");
  EXPECT_THAT(
      refusal("distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_activation_checkpointing: true\n"),
      HasSubstr("it needs layers that are wrapped"));
}

TEST(Accelerate, AClassThatTheModelHasNotNamesTheNearest) {
  EXPECT_THAT(refusal(kSecond + "  fsdp_transformer_layer_cls_to_wrap: Qwen2DecoderLayer\n", with_model()),
              HasSubstr("the model has no class Qwen2DecoderLayer; did you mean Qwen3DecoderLayer?"));
  EXPECT_EQ(key_in(read(kSecond + "  fsdp_transformer_layer_cls_to_wrap: transformers.models.Qwen3DecoderLayer\n",
                        with_model()),
                   "sub_modules_to_wrap"),
            kWithEnds);
  EXPECT_THAT(read(kSecond).missing, Contains(HasSubstr("the class of the layers follows from the model")));
}

std::string first(const std::string& strategy, int nodes = 1) {
  const Translation file = read("distributed_type: FSDP\nnum_processes: 16\nnum_machines: " + std::to_string(nodes) +
                                    "\nfsdp_config:\n  fsdp_sharding_strategy: " + strategy + "\n",
                                {.world = 0});
  EXPECT_THAT(file.notes, Contains(HasSubstr("is of FSDP1, and read as the FSDP2 file that comes nearest")));
  return key_in(file, "sharding_size") + " " + key_in(file, "reshard_after_forward");
}

TEST(Accelerate, StrategiesOfFsdp1AreTheirNearestOfFsdp2) {
  EXPECT_EQ(first("FULL_SHARD"), "auto true");
  EXPECT_EQ(first("SHARD_GRAD_OP"), "auto false");
  EXPECT_EQ(first("2"), "auto false");
  EXPECT_EQ(first("NO_SHARD"), "1 true");
  EXPECT_EQ(first("HYBRID_SHARD", 2), "8 true");
  EXPECT_EQ(first("HYBRID_SHARD_ZERO2", 2), "8 false");
}

TEST(Accelerate, SizesOfParallelismMultiplyToTheRanks) {
  const auto sizes = [](int replicate, int shard, const std::string& more = {}) {
    return fmt::format(
        "{}parallelism_config:\n  parallelism_config_dp_replicate_size: {}\n"
        "  parallelism_config_dp_shard_size: {}\n{}",
        "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\n", replicate, shard, more);
  };
  EXPECT_EQ(key_in(read(sizes(2, 4)), "sharding_size"), "4");
  EXPECT_THAT(refusal(sizes(2, 2)), HasSubstr("dp_replicate_size 2 x dp_shard_size 2 is 4, and there are 8 ranks"));
  EXPECT_THAT(refusal(sizes(2, 1)), HasSubstr("replicas of shards of one rank are not FSDP"));
  const std::string context = "  parallelism_config_cp_size: 2\n";
  EXPECT_THAT(refusal(sizes(2, 4, context)),
              HasSubstr("dp_replicate_size 2 x dp_shard_size 4 x cp_size 2 is 16, and there are 8 ranks"));
  const Translation shared = read(sizes(2, 2, context));
  EXPECT_EQ(key_in(shared, "sharding_size"), "4");  // over both axes
  EXPECT_EQ(key_in(shared, "ring_attention_size"), "2");
  EXPECT_EQ(key_in(shared, "ring_rotate_method"), "allgather");
}

TEST(Accelerate, MatricesAreShared) {
  const auto text = [](const std::string& sizes) {
    return "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\nparallelism_config: {" + sizes + "}\n";
  };
  const std::string two = "parallelism_config_tp_size: 2", shards = ", parallelism_config_dp_shard_size: ",
                    replicas = ", parallelism_config_dp_replicate_size: ";
  const Translation file = read(text(two + shards + "4"));
  EXPECT_THAT(file.refused, IsEmpty());
  EXPECT_EQ(key_in(file, "tensor_parallel_size"), "2");
  EXPECT_EQ(key_in(file, "sharding_size"), "4");
  EXPECT_EQ(key_in(file, "loss_parallel"), "false");
  EXPECT_EQ(key_in(read(text(two + shards + "2" + replicas + "2")), "sharding_size"), "2");
  EXPECT_EQ(key_in(read(text(two + shards + "2, parallelism_config_cp_size: 2")), "sharding_size"), "4");
  EXPECT_EQ(key_in(read(text("parallelism_config_tp_size: 8")), "sharding_size"), "1");
  EXPECT_THAT(refusal(text(two + shards + "8")),
              HasSubstr("dp_replicate_size 1 x dp_shard_size 8 x tp_size 2 is 16, and there are 8 ranks"));
  EXPECT_THAT(refusal(text(two + replicas + "4")),
              HasSubstr("replicas of shards of one rank are not FSDP; write a dp_shard_size above 1"));
  EXPECT_THAT(refusal(text("parallelism_config_tp_size: 0")), HasSubstr("use a whole number of at least 1"));
  EXPECT_THAT(refusal(text("tp_size: 2")),
              HasSubstr("parallelism_config.tp_size is 2; is not read there; write it with "
                        "parallelism_config_ in front"));
}

TEST(Accelerate, ParallelismIsOfFsdp2) {
  const std::string sizes = "parallelism_config: {parallelism_config_tp_size: 8}\n";
  const std::string reason = "needs distributed_type FSDP and fsdp_version 2; write these, or remove it";
  EXPECT_THAT(refusal("distributed_type: MULTI_GPU\n" + sizes), HasSubstr(reason));
  EXPECT_THAT(refusal("distributed_type: FSDP\n" + sizes), HasSubstr(reason));
  EXPECT_THAT(refusal("distributed_type: DEEPSPEED\n" + sizes),
              HasSubstr("with DeepSpeed write tensor_parallel.autotp_size in DeepSpeed's file"));
  EXPECT_EQ(key_in(read("distributed_type: MULTI_GPU\nparallelism_config: {}\n"), "sharding_size"), "1");
  EXPECT_EQ(key_in(read("distributed_type: FSDP\nparallelism_config: {}\n"), "sharding_size"), "auto");
}

TEST(Accelerate, SizesThatDoNotFitInto64BitsAreRefused) {
  const std::string big = "1000000000000";
  EXPECT_THAT(
      refusal(
          "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\nparallelism_config: {parallelism_config_dp_shard_size: " +
          big + ", parallelism_config_cp_size: " + big + ", parallelism_config_tp_size: " + big + "}\n"),
      HasSubstr("and there are 8 ranks; make them equal"));
}

TEST(Transformers, KeysWithAndWithoutTheirPrefixAreTheSame) {
  const Asked asked = with_model({.file = "f.json"});
  const Translation plain =
      read(R"({"version": 2, "reshard_after_forward": false, "cpu_offload": true, "activation_checkpointing": true})",
           asked);
  const Translation prefixed = read(
      R"({"fsdp_version": 2, "fsdp_reshard_after_forward": false, "fsdp_cpu_offload": true,
          "fsdp_activation_checkpointing": true})",
      asked);
  EXPECT_THAT(plain.refused, IsEmpty());
  EXPECT_EQ(key_in(plain, "reshard_after_forward"), "false");
  EXPECT_EQ(key_in(plain, "offload_to_cpu"), "true");
  EXPECT_THAT(differences(resolve(plain, context_of(asked)), resolve(prefixed, context_of(asked))), IsEmpty());
}

TEST(Transformers, OldWordsAreRead) {
  const Asked asked = with_model({.file = "f.json"});
  const Translation file = read(R"({"version": 2, "fsdp": "shard_grad_op auto_wrap offload"})", asked);
  EXPECT_EQ(key_in(file, "reshard_after_forward"), "false");
  EXPECT_EQ(key_in(file, "pin_memory"), "true");
  EXPECT_THAT(refusal(R"({"version": 2, "fsdp": "hybrid_shard auto_wrap"})", asked),
              HasSubstr("with version 2 the words are"));
}

}  // namespace
}  // namespace loom::dialects
