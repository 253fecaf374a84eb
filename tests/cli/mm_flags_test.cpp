// Promise: hf-to-mm and mm-to-hf mean what their flags say, also as mm-convert's Qwen converters spell them, in files
//          and in variables; what is missing, and what MindSpeed-MM has beyond them, is refused by name.
// World:   command lines, files of flags and environment variables; no weights.
#include <cstdlib>
#include <gmock/gmock.h>

#include "engine/cli/words/convert_arguments.h"
#include "tests/cli/parsed.h"
#include "tests/support/files.h"

namespace loom::cli {
namespace {

using checkpoint::HfToMm;
using checkpoint::LayerLists;
using checkpoint::MmToHf;
using ::testing::HasSubstr;

template <class Options>
Options conversion(const Words& words) {
  return std::get<Options>(
      std::any_cast<ConvertArguments>(std::get<OptionalArguments>(parsed(words)).values).conversion);
}

const Words kImport{"convert",         "hf-to-mm",  "--hf-dir",        "hf",    "--mm-dir", "mm",
                    "--llm-pp-layers", "[[14,14]]", "--vit-pp-layers", "[32,0]"};
const Words kMmImport{"mm-convert",
                      "Qwen2VLConverter",
                      "hf_to_mm",
                      "--cfg.mm_dir",
                      "mm",
                      "--cfg.hf_config.hf_dir",
                      "hf",
                      "--cfg.parallel_config.llm_pp_layers",
                      "[[1,10],[10,7]]",
                      "--cfg.parallel_config.vit_pp_layers",
                      "[[32, 0], [0,0]]",
                      "--cfg.parallel_config.tp_size",
                      "2"};

TEST(MmFlags, GiveFoldersListsAndSizes) {
  const auto options = conversion<HfToMm>(kImport + Words{"--dtype", "bf16", "--model-type", "qwen2_5_vl"});
  EXPECT_EQ(options.hf_dir, "hf");
  EXPECT_EQ(options.mm_dir, "mm");
  EXPECT_EQ(options.layout.text_layers, (LayerLists{{14, 14}}));
  EXPECT_EQ(options.layout.vision_layers, (LayerLists{{32, 0}}));
  EXPECT_EQ(options.layout.tensor_size, 1);
  EXPECT_EQ(options.dtype, DType::kBF16);
  EXPECT_EQ(options.model_type, "qwen2_5_vl");
  const auto back = conversion<MmToHf>({"convert", "mm-to-hf", "--mm-dir", "mm", "--save-dir", "new", "--hf-dir", "hf",
                                        "--llm-pp-layers", "[28]", "--vit-pp-layers", "[32]", "--shard-size", "5GB"});
  EXPECT_EQ(back.mm_dir, "mm");
  EXPECT_EQ(back.save_dir, "new");
  EXPECT_EQ(back.shard_bytes, 5'000'000'000);
}

TEST(MmFlags, TakeTheWordsOfMmConvert) {
  const auto options = conversion<HfToMm>(kMmImport);
  EXPECT_EQ(options.hf_dir, "hf");
  EXPECT_EQ(options.mm_dir, "mm");
  EXPECT_EQ(options.layout.text_layers, (LayerLists{{1, 10}, {10, 7}}));
  EXPECT_EQ(options.layout.vision_layers, (LayerLists{{32, 0}, {0, 0}}));
  EXPECT_EQ(options.layout.tensor_size, 2);
  EXPECT_EQ(options.model_type, "qwen2_vl");
  const auto back =
      conversion<MmToHf>({"mm-convert", "Qwen2_5_VLConverter", "mm_to_hf", "--cfg.save_hf_dir", "new", "--cfg.mm_dir",
                          "mm", "--cfg.hf_config.hf_dir", "hf", "--cfg.parallel_config.llm_pp_layers=[28]",
                          "--cfg.parallel_config.vit_pp_layers=[32]", "--cfg.parallel_config.ep_size", "1"});
  EXPECT_EQ(back.save_dir, "new");
  EXPECT_EQ(back.layout.text_layers, (LayerLists{{28}}));
  EXPECT_EQ(back.model_type, "qwen2_5_vl");
}

TEST(MmFlags, ReadAFileWithInnerMappings) {
  const std::string file =
      test::write_file(test::fresh_folder() / "hf_to_mm.yaml",
                       "cfg:\n  mm_dir: mm\n  parallel_config:\n    llm_pp_layers: [[1,10,10,7]]\n"
                       "    vit_pp_layers: [[32,0,0,0]]\n    tp_size: 4\n  hf_config:\n    hf_dir: hf\n");
  const auto options = conversion<HfToMm>(
      {"mm-convert", "Qwen2VLConverter", "hf_to_mm", "--config", file, "--cfg.parallel_config.tp_size", "2"});
  EXPECT_EQ(options.hf_dir, "hf");
  EXPECT_EQ(options.layout.text_layers, (LayerLists{{1, 10, 10, 7}}));
  EXPECT_EQ(options.layout.tensor_size, 2);
  const std::string wrong =
      test::write_file(test::fresh_folder() / "wrong.yaml", "cfg:\n  parallel_config:\n    llm_pp_layer: [[28]]\n");
  EXPECT_EQ(refusal({"mm-convert", "Qwen2VLConverter", "hf_to_mm", "--config", wrong}),
            wrong + ":3:5: unknown key 'cfg.parallel_config.llm_pp_layer'; did you mean llm_pp_layers?");
}

TEST(MmFlags, ReadVariables) {
  const std::string prefix = "MM_CONVERT_QWEN2VLCONVERTER__HF_TO_MM__CFG__";
  const std::vector<std::pair<std::string, std::string>> variables{
      {"JSONARGPARSE_DEFAULT_ENV", "true"},
      {prefix + "MM_DIR", "mm"},
      {prefix + "HF_CONFIG__HF_DIR", "hf"},
      {prefix + "PARALLEL_CONFIG__LLM_PP_LAYERS", "[[14,14]]"},
      {prefix + "PARALLEL_CONFIG__VIT_PP_LAYERS", "[[32,0]]"}};
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  const auto options = conversion<HfToMm>({"mm-convert", "Qwen2VLConverter", "hf_to_mm"});
  for (const auto& [name, value] : variables) ::unsetenv(name.c_str());
  EXPECT_EQ(options.hf_dir, "hf");
  EXPECT_EQ(options.layout.text_layers, (LayerLists{{14, 14}}));
}

TEST(MmFlags, AreInTheHelp) {
  EXPECT_THAT(std::get<EarlyExit>(parsed({"convert", "hf-to-mm", "--help"})).text,
              HasSubstr("--cfg.parallel-config.tp-size N"));
  EXPECT_THAT(std::get<EarlyExit>(parsed({"mm-convert", "Qwen2VLConverter", "--help"})).text, HasSubstr("mm-to-hf"));
}

struct Bad {
  Words words;
  std::string message;
};

void PrintTo(const Bad& bad, std::ostream* out) { *out << ::testing::PrintToString(bad.words); }

class BadMmConversion : public ::testing::TestWithParam<Bad> {};

TEST_P(BadMmConversion, IsRefusedWithWhatToWrite) { EXPECT_EQ(refusal(GetParam().words), GetParam().message); }

INSTANTIATE_TEST_SUITE_P(
    All, BadMmConversion,
    ::testing::Values(
        Bad{{"convert", "hf-to-mm", "--hf-dir", "a"},
            "convert hf-to-mm: --mm-dir is missing; give a folder for the checkpoint"},
        Bad{{"convert", "hf-to-mm", "--hf-dir", "a", "--mm-dir", "b", "--vit-pp-layers", "[[32]]"},
            "convert hf-to-mm: --llm-pp-layers is missing; give the layers of the text in each stage: [[1,10,10,7]]"},
        Bad{{"convert", "mm-to-hf", "--mm-dir", "b", "--save-dir", "c", "--hf-dir", "a", "--llm-pp-layers", "[28]"},
            "convert mm-to-hf: --vit-pp-layers is missing; give the layers of the tower in each stage: [[1,10,10,7]]"},
        Bad{{"convert", "mm-to-hf", "--mm-dir", "b", "--save-dir", "c"},
            "convert mm-to-hf: --hf-dir is missing; give the folder with config.json and the tokenizer"},
        Bad{kImport + Words{"--llm-pp-layers", "28"},
            "--llm-pp-layers is 28; use lists of whole numbers, the layers of each stage: [[1,10,10,7]]"},
        Bad{kImport + Words{"--vit-pp-layers", "[[1,-1]]"},
            "--vit-pp-layers is [[1,-1]]; use lists of whole numbers, the layers of each stage: [[1,10,10,7]]"},
        Bad{kImport + Words{"--tp-size", "0"}, "--tp-size is 0; use a whole number of at least 1"},
        Bad{{"mm-convert", "Qwen2VLConverter", "resplit"},
            "mm-convert Qwen2VLConverter resplit is not built; run mm_to_hf, and then hf_to_mm with the new sizes"},
        Bad{{"mm-convert", "Qwen2_5_VLConverter", "hf_to_dcp"},
            "mm-convert Qwen2_5_VLConverter: 'hf_to_dcp' is no conversion of it; use hf_to_mm or mm_to_hf"},
        Bad{{"mm-convert", "InternVLConverter", "hf_to_mm"},
            "mm-convert: 'InternVLConverter' is not built: GenericDCPConverter, Qwen2VLConverter, Qwen2_5_VLConverter "
            "are. Language models in Megatron's layout: shardloom convert hf-to-mcore and mcore-to-hf"},
        Bad{kMmImport + Words{"--cfg.parallel_config.vit_tp_size", "1", "--cfg.save_vit_only", "true",
                              "--cfg.parallel_config.audio_pp_layers", "[[1]]"},
            "3 flags are not taken:\n"
            "  --cfg.parallel-config.vit-tp-size is 1; the tower is cut as the text is; write 0, or remove it\n"
            "  --cfg.parallel-config.audio-pp-layers is of models that hear; remove it\n"
            "  --cfg.save-vit-only is true; the whole model is converted; write false, or remove it"}));

}  // namespace
}  // namespace loom::cli
