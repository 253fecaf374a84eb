// Promise: the dialect of a file is told by its top-level keys; a file of two, and a format that is not read, are
//          errors that name a key and its line.
// World:   the smallest file of each dialect.
#include "tests/dialects/translated.h"

namespace loom::dialects {
namespace {

using test::message_of;
using ::testing::HasSubstr;

struct Smallest {
  std::string text;
  Dialect dialect;
  std::string file = "f.yaml";
};

TEST(Recognise, TheSmallestFileOfEachDialect) {
  const Smallest files[] = {
      {"sharding_size: auto\n", Dialect::kFlat},
      {"lr: 1e-4\n", Dialect::kFlat},
      {"parallel:\n  fsdp_plan: {}\n", Dialect::kNative},
      {"features: {}\n", Dialect::kNative},
      {"training:\n  train_iters: 5\n", Dialect::kNative},
      {"model: {}\ntraining: {}\n", Dialect::kNative},
      {"parallel:\n  fsdp_size: 1\n", Dialect::kLlm},
      {"optimization: {}\n", Dialect::kLlm},
      {"training:\n  output_dir: out\n", Dialect::kLlm},
      {"gpt_args: {}\n", Dialect::kGptArgs},
      {"distributed_type: FSDP\n", Dialect::kAccelerate},
      {"compute_environment: LOCAL_MACHINE\nfsdp_config: {}\n", Dialect::kAccelerate},
      {"{\"version\": 2}", Dialect::kTransformers, "f.json"},
      {"{\"fsdp_transformer_layer_cls_to_wrap\": [\"Qwen2DecoderLayer\"]}", Dialect::kTransformers, "f.json"},
      {"{\"fsdp_version\": 2, \"limit_all_gathers\": \"true\", \"xla\": false}", Dialect::kTransformers, "f.json"},
      {"{\"zero_optimization\": {\"stage\": 0}}", Dialect::kDeepSpeed, "f.json"},
      {"{\"train_batch_size\": 8}", Dialect::kDeepSpeed, "f.json"},
  };
  for (const Smallest& file : files) {
    EXPECT_EQ(word_of(read(file.text, {.file = file.file}).dialect), word_of(file.dialect)) << file.text;
  }
}

std::string error(const std::string& text, const std::string& file = "f.yaml") {
  return message_of<ConfigError>([&] { read(text, {.file = file}); });
}

TEST(Recognise, AFileOfTwoDialectsNamesAKeyOfEach) {
  EXPECT_EQ(error("parallel:\n  fsdp_size: 8\nfeatures:\n  recompute: true\n"),
            "f.yaml:3:1: 'features' is a key of MindSpeed-MM (six sections), "
            "and 'parallel.fsdp_size' at line 2 is a key of "
            "MindSpeed-LLM (train_fsdp2.py); keep one of the two dialects in a file");
  EXPECT_THAT(error("distributed_type: FSDP\nfeatures: {}\n"), HasSubstr("f.yaml:2:1: 'features' is a key of"));
}

TEST(Recognise, FormatsThatAreNotReadAreNamed) {
  EXPECT_EQ(error("base_model: qwen\nfsdp_config:\n  offload_params: true\n"),
            "f.yaml:1:1: 'base_model' beside fsdp_config is a key of axolotl, whose files are not read; write the "
            "accelerate file it makes");
  EXPECT_THAT(error("zero3_size: 8\ntransformer_layers: []\n"),
              HasSubstr("f.yaml:1:1: 'zero3_size' is a key of MindSpeed's LayerZeRO (FSDP1), which is not built"));
  EXPECT_THAT(
      error("stage: sft\nfinetuning_type: lora\nbf16: true\n"),
      HasSubstr("f.yaml:2:1: 'finetuning_type' is a key of LLaMA-Factory, whose files are not read; give the file "
                "of accelerate or DeepSpeed that it starts with"));
  EXPECT_THAT(
      message_of<ConfigError>([] { translate_text("[training]\nsteps = 1\n", "llama3_8b.toml", {}, {}); }),
      HasSubstr("llama3_8b.toml: TOML, which torchtitan had until 2025, is not read; give its keys as overrides, "
                "such as --training.steps 1000"));
}

TEST(Recognise, AMisspelledKeyOfTransformersIsCorrected) {
  EXPECT_THAT(refusal("{\"fsdp_version\": 2, \"fsdp_offload_param\": true}", {.file = "f.json"}),
              HasSubstr("did you mean offload_params?"));
}

TEST(Recognise, AFileOfNoDialectListsThem) {
  EXPECT_THAT(error("colour: red\n"), HasSubstr("f.yaml:1:1: 'colour' is a key of no dialect that is read; these are "
                                                "fsdp2_config.yaml, MindSpeed-MM (six sections)"));
}

}  // namespace
}  // namespace loom::dialects
