// Promise: each of the eight things that users of FSDP2 on NPUs have to know by heart is automatic here, or an error
//          before the start that says what to write.
// World:   the built program with a tiny model.
#include <gmock/gmock.h>

#include "tests/support/program.h"

namespace loom::test {
namespace {

const std::string kYaml =
    "sharding_size: auto\nsub_modules_to_wrap: [\"model.embed_tokens\", \"model.layers.{*}\", \"lm_head\"]\n";
const Words kTwoRanks{"--nproc-per-node", "2"};

struct Thing {
  std::string name;
  std::string yaml;
  Words flags;
  std::string error;         // without the program's name; empty: it trains
  std::string warning = {};  // where it trains
  Words environment = {};    // NAME=value
  Words command = kFourSteps + kTwoRanks;
  bool tied = false;  // the model's embedding and output layer are one parameter
};

void PrintTo(const Thing& thing, std::ostream* out) { *out << thing.name; }

class EightThings : public ::testing::TestWithParam<Thing> {
 protected:
  EightThings() {
    if (!GetParam().tied) return;
    std::string model = folder.read("model.yaml");
    model.replace(model.find("tie_word_embeddings: false"), 26, "tie_word_embeddings: true");
    folder.write("model.yaml", model);
  }
  const ProgramFolder folder;
};

TEST_P(EightThings, AreAutomaticOrSayWhatToWrite) {
  const Thing& thing = GetParam();
  folder.write("fsdp2.yaml", thing.yaml);
  const Words launcher = thing.environment.empty() ? Words{} : Words{"env"} + thing.environment;
  const Outcome outcome = folder.run(thing.command + thing.flags, launcher);
  if (thing.error.empty()) {
    EXPECT_EQ(outcome.err, thing.warning);
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(folder.metrics("metrics.jsonl").size(), 4u);
  } else {
    EXPECT_EQ(outcome.err, "shardloom: " + thing.error + "\n");
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_FALSE(std::filesystem::exists(folder.path("metrics.jsonl")));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, EightThings,
    ::testing::Values(
        Thing{.name = "1 sharding_size defaults to 1, which shards nothing",
              .yaml = "sub_modules_to_wrap: [\"model.layers.{*}\"]\n",
              .flags = {},
              .error = "fsdp2.yaml: sharding_size is not given, and its default of 1 shards nothing over 2 ranks; "
                       "write sharding_size: auto (all ranks), or sharding_size: 1 where every rank shall hold the "
                       "whole model"},
        Thing{
            .name = "2 Megatron's recompute flags beside recompute_modules",
            .yaml = kYaml + "recompute_modules: [\"model.layers.{*}\"]\n",
            .flags = {"--recompute-granularity", "full", "--recompute-method", "block", "--recompute-num-layers", "1"},
            .error = "fsdp2.yaml:3:1: recompute_modules is given beside --recompute-granularity; remove the flag: the "
                     "file says what is recomputed"},
        Thing{.name = "3 offload without a double backend flag",
              .yaml = kYaml + "offload_to_cpu: true\n",
              .flags = {},
              .error = ""},
        Thing{.name = "3 offload with the guide's double backend flag",
              .yaml = kYaml + "offload_to_cpu: true\n",
              .flags = {"--distributed-backend", "npu:hccl,cpu:gloo"},
              .error = ""},
        Thing{.name = "4 CUDA_DEVICE_MAX_CONNECTIONS is 1",
              .yaml = kYaml,
              .flags = {},
              .error = "",
              .warning = "warning: CUDA_DEVICE_MAX_CONNECTIONS is 1, which changes nothing here; MindSpeed refuses it "
                         "with FSDP2: export 2 there\n",
              .environment = {"CUDA_DEVICE_MAX_CONNECTIONS=1"}},
        Thing{.name = "4 CUDA_DEVICE_MAX_CONNECTIONS is 2",
              .yaml = kYaml,
              .flags = {},
              .error = "",
              .environment = {"CUDA_DEVICE_MAX_CONNECTIONS=2"}},
        Thing{
            .name = "5 a tie over two groups",
            .yaml = kYaml,
            .flags = {},
            .error =
                "fsdp2.yaml:2:22: sub_modules_to_wrap: 'model.embed_tokens.weight' (group 'model.embed_tokens') "
                "and 'lm_head.weight' (group 'lm_head') are one parameter; a tie must stay inside one group: "
                "wrap neither module, wrap both as one group, or untie them (--untie-embeddings-and-output-weights, or "
                "tie_word_embeddings: false)",
            .tied = true},
        Thing{.name = "5 a tie over two groups, untied by the flag",
              .yaml = kYaml,
              .flags = {"--untie-embeddings-and-output-weights"},
              .error = "",
              .tied = true},
        Thing{.name = "5 a tie inside one group needs no flag",
              .yaml = "sharding_size: auto\nsub_modules_to_wrap: [\"model.layers.{*}\"]\n",
              .flags = {},
              .error = "",
              .tied = true},
        Thing{.name = "6 torch_dist with a weight of fewer rows than ranks",
              .yaml = kYaml,
              .flags = {"--ckpt-format", "torch_dist"},
              .error = "fsdp2.yaml:1:16: sharding_size is 9, but 'model.layers.0.self_attn.k_proj.weight' has 8 rows, "
                       "and --ckpt-format torch_dist needs one a rank; write --ckpt-format torch_dcp",
              .command = kTrain + kSharded + Words{"--model-config", "model.yaml", "--nproc-per-node", "9"}},
        Thing{.name = "7 --bf16 breaks resuming",
              .yaml = kYaml,
              .flags = {"--bf16"},
              .error = "fsdp2.yaml: param_dtype is not given, and --bf16 asks for bf16; write param_dtype: bf16 "
                       "(parameters stay fp32, so that the optimizer can resume), or remove the flag"},
        Thing{.name = "7 --bf16 beside a file that says so",
              .yaml = kYaml + "param_dtype: bf16\n",
              .flags = {"--bf16"},
              .error = ""},
        Thing{.name = "1 sharding_size: null is the default",
              .yaml = "sharding_size: null\nsub_modules_to_wrap: [\"model.layers.{*}\"]\n",
              .flags = {},
              .error = "fsdp2.yaml: sharding_size is not given, and its default of 1 shards nothing over 2 ranks; "
                       "write sharding_size: auto (all ranks), or sharding_size: 1 where every rank shall hold the "
                       "whole model"},
        Thing{.name = "8 a section of the other dialect",
              .yaml = "sharding_size: auto\nparallel:\n  fsdp_plan: {apply_modules: [\"model.layers.{*}\"]}\n",
              .flags = {},
              .error = "fsdp2.yaml:2:1: 'parallel' is a section of another FSDP2 dialect; write the keys of "
                       "fsdp2_config.yaml at the top level"},
        Thing{.name = "8 a field of the other dialect",
              .yaml = "sharding_size: auto\napply_modules: [\"model.layers.{*}\"]\n",
              .flags = {},
              .error = "fsdp2.yaml:2:1: 'apply_modules' is a key of another FSDP2 dialect; write "
                       "sub_modules_to_wrap"}));

}  // namespace
}  // namespace loom::test
