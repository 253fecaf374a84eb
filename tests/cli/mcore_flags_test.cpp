// Promise: hf-to-mcore and mcore-to-hf mean what their flags say, also as MindSpeed-LLM's convert_ckpt.py and
//          convert_ckpt_v2.py spell them; each of those scripts' flags is taken, named as without effect, or refused
//          with a reason.
// World:   command lines; no files.
#include <gmock/gmock.h>

#include "engine/cli/words/convert_arguments.h"
#include "engine/core/error.h"
#include "tests/cli/parsed.h"
#include "tests/support/files.h"

namespace loom::cli {
namespace {

using checkpoint::HfToMcore;
using checkpoint::McoreToHf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

ConvertArguments arguments(const Words& words) {
  return std::any_cast<ConvertArguments>(std::get<OptionalArguments>(parsed(words)).values);
}

template <class Options>
Options conversion(const Words& words) {
  return std::get<Options>(arguments(words).conversion);
}

const Words kImport{"convert", "hf-to-mcore", "--load-dir", "hf", "--save-dir", "mg"};
const Words kExport{"convert", "mcore-to-hf", "--load-dir", "mg", "--save-dir", "hf", "--hf-cfg-dir", "cfg"};

TEST(McoreFlags, GiveFoldersSizesAndValues) {
  const auto options = conversion<HfToMcore>(
      kImport + Words{"--target-tensor-parallel-size", "4", "--target-pipeline-parallel-size", "2",
                      "--target-expert-parallel-size", "8", "--expert-tensor-parallel-size", "1", "--num-layer-list",
                      "11,13", "--moe-grouped-gemm", "--make-vocab-size-divisible-by", "128", "--pad-vocab-size-to",
                      "512", "--dtype", "bf16"});
  EXPECT_EQ(options.load_dir, "hf");
  EXPECT_EQ(options.save_dir, "mg");
  EXPECT_EQ(options.tensor_size, 4);
  EXPECT_EQ(options.pipeline.stages, 2);
  EXPECT_THAT(options.pipeline.layer_list, ElementsAre(11, 13));
  EXPECT_EQ(options.expert_size, 8);
  EXPECT_EQ(options.expert_tensor_size, 1);
  EXPECT_TRUE(options.grouped_experts);
  EXPECT_EQ(options.vocab_divisible_by, 128);
  EXPECT_EQ(options.pad_vocab_to, 512);
  EXPECT_EQ(options.dtype, DType::kBF16);
  const auto virtual_stages =
      conversion<HfToMcore>(kImport + Words{"--num_layers_per_virtual_pipeline_stage", "2", "--noop_layers", "94,95",
                                            "--params-dtype", "fp16"});
  EXPECT_EQ(virtual_stages.pipeline.layers_per_chunk, 2);
  EXPECT_THAT(virtual_stages.pipeline.noop_layers, ElementsAre(94, 95));
  EXPECT_EQ(virtual_stages.checks.noop_layers, 2);
  EXPECT_EQ(virtual_stages.dtype, DType::kF16);
  EXPECT_TRUE(conversion<HfToMcore>(kImport + Words{"--schedules-method", "dualpipev"}).pipeline.dualpipev);
  const auto plain = conversion<HfToMcore>(kImport);
  EXPECT_FALSE(plain.pipeline.dualpipev || plain.dtype || plain.grouped_experts);
  EXPECT_EQ(plain.vocab_divisible_by, 1);
}

TEST(McoreFlags, BackNeedNoSizes) {
  const auto options = conversion<McoreToHf>(kExport + Words{"--shard-size", "2GB"});
  EXPECT_EQ(options.load_dir, "mg");
  EXPECT_EQ(options.save_dir, "hf");
  EXPECT_EQ(options.hf_cfg_dir, "cfg");
  EXPECT_EQ(options.shard_bytes, 2'000'000'000);
  const auto given = arguments(kExport + Words{"--num-layer-list", "1,2", "--noop-layers", "4", "--moe-grouped-gemm",
                                               "--target-tensor-parallel-size", "1", "--num-layers", "9"});
  EXPECT_THAT(given.without_effect, UnorderedElementsAre("--num-layer-list 1,2", "--noop-layers 4",
                                                         "--moe-grouped-gemm", "--target-tensor-parallel-size 1"));
  EXPECT_EQ(std::get<McoreToHf>(given.conversion).checks.noop_layers, 1);
  EXPECT_EQ(refusal(kExport + Words{"--target-tensor-parallel-size", "2"}),
            "--target-tensor-parallel-size is 2; a Hugging Face folder has no ranks; write 1, or remove it");
}

TEST(McoreFlags, ReadAFileOfFlags) {
  const std::string file = test::write_file(test::fresh_folder() / "flags.yaml",
                                            "load_dir: hf\nsave_dir: mg\ntarget_tensor_parallel_size: 2\n");
  EXPECT_EQ(conversion<HfToMcore>({"convert", "hf-to-mcore", "--config", file}).tensor_size, 2);
}

TEST(ConvertCkpt, SecondVersionIsTheSameConversion) {
  const auto import = arguments({"convert_ckpt_v2.py", "--load-model-type", "hf", "--save-model-type", "mg",
                                 "--model-type-hf", "qwen3", "--target-tensor-parallel-size", "2", "--load-dir", "hf",
                                 "--save-dir", "mg", "--save-layer-by-layer", "--transformer-impl", "local"});
  const auto& options = std::get<HfToMcore>(import.conversion);
  EXPECT_EQ(options.tensor_size, 2);
  EXPECT_THAT(options.checks.model_types, ElementsAre("qwen3"));
  EXPECT_EQ(options.checks.type_flag, "--model-type-hf qwen3");
  EXPECT_THAT(import.without_effect, ElementsAre("--save-layer-by-layer", "--transformer-impl local"));
  EXPECT_EQ(conversion<HfToMcore>({"convert_ckpt_v2", "--load-dir", "hf", "--save-dir", "mg"}).load_dir, "hf");
  const auto back = conversion<McoreToHf>({"convert_ckpt_v2", "--load_model_type=mg", "--save_model_type=hf",
                                           "--load-dir", "mg", "--save-dir", "hf", "--hf-cfg-dir", "cfg"});
  EXPECT_EQ(back.save_dir, "hf");
  EXPECT_EQ(back.hf_cfg_dir, "cfg");
}

TEST(ConvertCkpt, FirstVersionWritesBelowTheModelsFolder) {
  const auto import =
      arguments({"convert_ckpt", "--use-mcore-models", "--model-type", "GPT", "--load-model-type", "hf",
                 "--save-model-type", "mg", "--model-type-hf", "llama2", "--add-qkv-bias", "--params-dtype", "bf16",
                 "--load-dir", "hf", "--save-dir", "mg", "--tokenizer-model", "hf/tokenizer.json"});
  const auto& options = std::get<HfToMcore>(import.conversion);
  EXPECT_TRUE(options.checks.qkv_bias);
  EXPECT_THAT(options.checks.model_types, ElementsAre("llama", "qwen2"));
  EXPECT_THAT(import.without_effect,
              UnorderedElementsAre("--use-mcore-models", "--model-type GPT", "--tokenizer-model hf/tokenizer.json"));
  const auto back = conversion<McoreToHf>({"convert_ckpt.py", "--load-model-type", "mg", "--save-model-type", "hf",
                                           "--load-dir", "mg", "--save-dir", "hf"});
  EXPECT_EQ(back.save_dir, "hf/mg2hf");
  EXPECT_EQ(back.hf_cfg_dir, "hf");
}

TEST(ConvertCkpt, ShowsTheHelpOfConversions) {
  EXPECT_THAT(std::get<EarlyExit>(parsed({"convert_ckpt_v2", "--help"})).text, HasSubstr("hf-to-mcore"));
  EXPECT_THAT(std::get<EarlyExit>(parsed({"convert", "hf-to-mcore", "--help"})).text,
              HasSubstr("--target-pipeline-parallel-size N"));
}

// Every flag of the two scripts (their argument parsers), with a value where it takes one.
const std::vector<Words> kFlagsOfTheScripts{{"--model-type-hf", "qwen3"},
                                            {"--target-tensor-parallel-size", "1"},
                                            {"--target-pipeline-parallel-size", "1"},
                                            {"--target-expert-parallel-size", "1"},
                                            {"--expert-tensor-parallel-size", "1"},
                                            {"--num-layers-per-virtual-pipeline-stage", "1"},
                                            {"--pipeline-model-parallel-layout", "x"},
                                            {"--moe-grouped-gemm"},
                                            {"--noop-layers", "1"},
                                            {"--mtp-num-layers", "0"},
                                            {"--num-layer-list", "1"},
                                            {"--moe-tp-extend-ep"},
                                            {"--mla-mm-split"},
                                            {"--schedules-method", "dualpipev"},
                                            {"--first-k-dense-replace", "0"},
                                            {"--num-layers", "1"},
                                            {"--transformer-impl", "local"},
                                            {"--hf-cfg-dir", "x"},
                                            {"--input-tp-rank", "0"},
                                            {"--input-pp-rank", "0"},
                                            {"--hidden-size", "1"},
                                            {"--mamba-state-dim", "1"},
                                            {"--mamba-num-groups", "1"},
                                            {"--mamba-head-dim", "1"},
                                            {"--save-layer-by-layer"},
                                            {"--lora-load", "x"},
                                            {"--lora-r", "1"},
                                            {"--lora-alpha", "1"},
                                            {"--lora-target-modules", "a", "b"},
                                            {"--save-lora-to-hf"},
                                            {"--model-type", "GPT"},
                                            {"--loader", "x"},
                                            {"--saver", "x"},
                                            {"--max-queue-size", "1"},
                                            {"--no-checking"},
                                            {"--spec", "a", "b"},
                                            {"--ckpt-cfg-path", "x"},
                                            {"--qlora-nf4"},
                                            {"--orm"},
                                            {"--load-checkpoint-loosely"},
                                            {"--ckpt-format", "torch"},
                                            {"--true-vocab-size", "1"},
                                            {"--vocab-file", "x"},
                                            {"--tokenizer-model", "x"},
                                            {"--megatron-path", "x"},
                                            {"--w-pack", "False"},
                                            {"--add-qkv-bias"},
                                            {"--add-dense-bias"},
                                            {"--params-dtype", "bf16"},
                                            {"--make-vocab-size-divisible-by", "1"},
                                            {"--use-mcore-models"},
                                            {"--post-norm"},
                                            {"--save-to-legacy"},
                                            {"--load-hf-from-config"}};

TEST(ConvertCkpt, KnowsEveryFlagOfTheScripts) {
  for (const char* save : {"mg", "hf"}) {
    const std::string load = std::string(save) == "mg" ? "hf" : "mg";
    for (const Words& flag : kFlagsOfTheScripts) {
      Words words{"convert_ckpt_v2", "--load-model-type", load, "--save-model-type", save};
      words = words + Words{"--load-dir", "a", "--save-dir", "b"} + flag;
      if (load == "mg") words = words + Words{"--hf-cfg-dir", "c"};
      try {
        parsed(words);
      } catch (const ConfigError& error) {
        EXPECT_THAT(error.what(), HasSubstr(flag.front()));
        EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("unknown flag"))) << flag.front();
        EXPECT_THAT(error.what(), ::testing::AnyOf(HasSubstr("remove it"), HasSubstr("write "))) << flag.front();
      }
    }
  }
}

TEST(ConvertCkpt, RefusesAllThatIsNotTakenAtOnce) {
  EXPECT_EQ(refusal(kImport + Words{"--mla-mm-split", "--orm", "--mtp-num-layers", "2", "--tensor-size", "2"}),
            "4 flags are not taken:\n"
            "  unknown flag --tensor-size; see shardloom convert hf-to-mcore --help\n"
            "  --mtp-num-layers is 2; layers that predict several tokens are not converted; write 0\n"
            "  --mla-mm-split is of multi-head latent attention, whose models are not converted; remove it\n"
            "  --orm converts heads of reward models, which is not built; remove it");
}

struct Bad {
  Words words;
  std::string message;
};

void PrintTo(const Bad& bad, std::ostream* out) { *out << ::testing::PrintToString(bad.words); }

class BadMcore : public ::testing::TestWithParam<Bad> {};

TEST_P(BadMcore, IsRefusedWithWhatToWrite) { EXPECT_EQ(refusal(GetParam().words), GetParam().message); }

INSTANTIATE_TEST_SUITE_P(
    All, BadMcore,
    ::testing::Values(
        Bad{{"convert", "hf-to-mcore", "--save-dir", "a"},
            "convert hf-to-mcore: --load-dir is missing; give the folder with config.json and the safetensors files"},
        Bad{{"convert", "hf-to-mcore", "--load-dir", "a"},
            "convert hf-to-mcore: --save-dir is missing; give a folder for the checkpoint"},
        Bad{{"convert", "mcore-to-hf", "--load-dir", "a", "--save-dir", "b"},
            "convert mcore-to-hf: --hf-cfg-dir is missing; give the folder with config.json and the tokenizer"},
        Bad{kImport + Words{"--num-layer-list", "11,x"},
            "--num-layer-list is 11,x; use whole numbers with commas between them, such as 11,13"},
        Bad{kImport + Words{"--noop-layers", "-1"},
            "--noop-layers is -1; use whole numbers with commas between them, such as 11,13"},
        Bad{kImport + Words{"--target-tensor-parallel-size", "0"},
            "--target-tensor-parallel-size is 0; use a whole number of at least 1"},
        Bad{kImport + Words{"--expert-tensor-parallel-size", "3", "--target-tensor-parallel-size", "4"},
            "--expert-tensor-parallel-size is 3; use 1, or that of --target-tensor-parallel-size, 4"},
        Bad{kImport + Words{"--schedules-method", "dualpipe"},
            "--schedules-method is dualpipe; use dualpipev (did you mean dualpipev?)"},
        Bad{kImport + Words{"--model-type-hf", "deepseek3"},
            "--model-type-hf is deepseek3, which is not converted; use llama2, qwen25, qwen3, qwen3-moe"},
        Bad{kImport + Words{"--lora-load", "tuned"},
            "--lora-load names adapters, which are merged first; remove it, and run shardloom merge --base DIR "
            "--adapter DIR "
            "--save DIR"},
        Bad{{"convert_ckpt", "--load-dir", "a"}, "convert_ckpt: --load-model-type is missing; write hf or mg"},
        Bad{{"convert_ckpt", "--load-model-type", "optim"},
            "--load-model-type is optim; use hf (Hugging Face) or mg (Megatron)"},
        Bad{{"convert_ckpt_v2", "--load-model-type", "mg", "--save-model-type", "mg"},
            "convert_ckpt_v2: --load-model-type and --save-model-type are both mg; convert to hf first, and that to mg "
            "in the new sizes"},
        Bad{{"convert_ckpt_v2", "--save-model-type", "hf"},
            "convert_ckpt_v2: --load-model-type and --save-model-type are both hf; write mg for one of them"},
        Bad{{"convert_ckpt_v2", "--load-model-type"},
            "--load-model-type needs a value, but nothing follows; see --help"}));

}  // namespace
}  // namespace loom::cli
