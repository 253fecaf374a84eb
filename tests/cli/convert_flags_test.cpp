// Promise: convert and inspect mean what their flags say, in the spellings of other converters too; what does not fit
//          is refused in one line.
// World:   files of flags and environment variables of the test; no weights.
#include <cstdlib>
#include <gmock/gmock.h>

#include "engine/cli/words/convert_arguments.h"
#include "tests/cli/parsed.h"
#include "tests/support/files.h"

namespace loom::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

template <class Options>
Options conversion(const Words& words) {
  return std::get<Options>(
      std::any_cast<ConvertArguments>(std::get<OptionalArguments>(parsed(words)).values).conversion);
}

const Words kImport{"convert", "hf-to-dcp", "--hf-dir", "hf", "--dcp-dir", "dcp"};
const Words kExport{"convert", "dcp-to-hf", "--load-dir", "dcp", "--model-assets-dir", "hf"};

TEST(ConvertFlags, GiveFoldersNamesAndValues) {
  const auto options = conversion<checkpoint::HfToDcp>(
      kImport + Words{"--dcp-prefix", "a.", "--hf-prefix", "b.", "--tie-weight-mapping", "t=s", "u=v",
                      "--fused-linear-names", "gate_up", "down", "--dtype", "bf16"});
  EXPECT_EQ(options.hf_dir, "hf");
  EXPECT_EQ(options.dcp_dir, "dcp");
  EXPECT_EQ(options.names.dcp_prefix, "a.");
  EXPECT_EQ(options.names.hf_prefix, "b.");
  EXPECT_THAT(options.ties, ElementsAre(Pair("t", "s"), Pair("u", "v")));
  EXPECT_THAT(options.fused_linear_names, ElementsAre("gate_up", "down"));
  EXPECT_EQ(options.dtype, DType::kBF16);
  EXPECT_EQ(conversion<checkpoint::HfToDcp>(kImport).dtype, std::nullopt);
}

TEST(ConvertFlags, TakeTheNamesOfOtherConverters) {
  const auto options = conversion<checkpoint::DcpToHf>(
      {"convert", "dcp_to_hf", "--load_dir", "run", "--model_configs", "hf", "--shard_size", "5GB"});
  EXPECT_EQ(options.load_dir, "run");
  EXPECT_EQ(options.save_dir, "run/hf_ckpt");
  EXPECT_EQ(options.model_assets_dir, "hf");
  EXPECT_EQ(options.shard_bytes, 5'000'000'000);
  EXPECT_EQ(conversion<checkpoint::HfToDcp>(kImport + Words{"--prefix", "p."}).names.dcp_prefix, "p.");
  const auto given = std::any_cast<ConvertArguments>(
      std::get<OptionalArguments>(parsed(kImport + Words{"--num-workers", "8", "--sharded"})).values);
  EXPECT_THAT(given.without_effect, ElementsAre("--num-workers", "--sharded"));
}

TEST(ConvertFlags, TakeEachOthersNamesOfFolders) {
  const auto import =
      conversion<checkpoint::HfToDcp>({"convert", "hf-to-dcp", "--load-dir", "hf", "--save-dir", "dcp"});
  EXPECT_EQ(import.hf_dir, "hf");
  EXPECT_EQ(import.dcp_dir, "dcp");
  const auto exported = conversion<checkpoint::DcpToHf>(
      {"convert", "dcp-to-hf", "--dcp-dir", "dcp", "--hf-dir", "new", "--model-assets-dir", "hf"});
  EXPECT_EQ(exported.load_dir, "dcp");
  EXPECT_EQ(exported.save_dir, "new");
}

TEST(ConvertFlags, ReadSizesWithTheirUnits) {
  const auto size = [](const std::string& text) {
    return conversion<checkpoint::DcpToHf>(kExport + Words{"--shard-size", text}).shard_bytes;
  };
  EXPECT_EQ(size("5000000000"), 5'000'000'000);
  EXPECT_EQ(size("200MB"), 200'000'000);
  EXPECT_EQ(size("2GiB"), 2'147'483'648);
  EXPECT_EQ(conversion<checkpoint::DcpToHf>(kExport).shard_bytes, std::nullopt);
}

TEST(ConvertFlags, ReshardForAWorld) {
  const auto options = conversion<checkpoint::DcpToDcp>(
      {"convert", "dcp-to-dcp", "--load-dir", "a", "--save-dir", "b", "--world-size", "8", "--no-optim"});
  EXPECT_EQ(options.world_size, 8);
  EXPECT_TRUE(options.no_optim);
}

TEST(MmConvert, IsTheSameConversion) {
  const auto options = conversion<checkpoint::HfToDcp>(
      {"mm-convert", "GenericDCPConverter", "hf_to_dcp", "--hf_dir", "hf", "--dcp_dir", "dcp", "--tie_weight_mapping",
       R"({"lm_head.weight": "model.embed_tokens.weight", 'a': 'b'})"});
  EXPECT_EQ(options.hf_dir, "hf");
  EXPECT_THAT(options.ties, ElementsAre(Pair("lm_head.weight", "model.embed_tokens.weight"), Pair("a", "b")));
}

TEST(MmConvert, ReadsAFileAndTheCommandLineOverIt) {
  const auto folder = test::fresh_folder();
  const std::string flat = test::write_file(folder / "flat.yaml",
                                            "hf_dir: from_file\ndcp_dir: dcp\ntie_weight_mapping:\n  t: s\n"
                                            "fused_linear_names: [gate_up, down]\n");
  const auto options = conversion<checkpoint::HfToDcp>(
      {"mm-convert", "GenericDCPConverter", "hf_to_dcp", "--config", flat, "--hf_dir", "hf"});
  EXPECT_EQ(options.hf_dir, "hf");
  EXPECT_EQ(options.dcp_dir, "dcp");
  EXPECT_THAT(options.ties, ElementsAre(Pair("t", "s")));
  EXPECT_THAT(options.fused_linear_names, ElementsAre("gate_up", "down"));
  const std::string nested = test::write_file(
      folder / "nested.yaml", "GenericDCPConverter:\n  hf_to_dcp:\n    hf_dir: nested\n    dcp_dir: dcp\n");
  EXPECT_EQ(
      conversion<checkpoint::HfToDcp>({"mm-convert", "--config=" + nested, "GenericDCPConverter", "hf_to_dcp"}).hf_dir,
      "nested");
  EXPECT_EQ(conversion<checkpoint::HfToDcp>({"convert", "hf-to-dcp", "--config", flat}).hf_dir, "from_file");
}

TEST(MmConvert, NamesTheLineOfAnUnknownKey) {
  const std::string file = test::write_file(test::fresh_folder() / "flags.yaml", "hf_dir: hf\ndcp_dirs: dcp\n");
  EXPECT_EQ(refusal({"convert", "hf-to-dcp", "--config", file}),
            file + ":2:1: unknown key 'dcp_dirs'; did you mean dcp_dir?");
}

class Environment : public ::testing::Test {
 protected:
  static constexpr const char* kHfDir = "MM_CONVERT_GENERICDCPCONVERTER__HF_TO_DCP__HF_DIR";
  static constexpr const char* kWrong = "MM_CONVERT_GENERICDCPCONVERTER__HF_TO_DCP__DCP_DIRS";

  void SetUp() override {
    ::setenv("JSONARGPARSE_DEFAULT_ENV", "true", 1);
    ::setenv(kHfDir, "from_environment", 1);
  }
  void TearDown() override {
    for (const char* name : {"JSONARGPARSE_DEFAULT_ENV", kHfDir, kWrong}) ::unsetenv(name);
  }
  const Words words_{"mm-convert", "GenericDCPConverter", "hf_to_dcp", "--dcp_dir", "dcp"};
};

TEST_F(Environment, GivesFlagsThatTheCommandLineDoesNot) {
  EXPECT_EQ(conversion<checkpoint::HfToDcp>(words_).hf_dir, "from_environment");
  EXPECT_EQ(conversion<checkpoint::HfToDcp>(words_ + Words{"--hf_dir", "hf"}).hf_dir, "hf");
}

TEST_F(Environment, CountsOnlyWhereItIsAskedFor) {
  ::unsetenv("JSONARGPARSE_DEFAULT_ENV");
  EXPECT_EQ(refusal(words_), "convert hf-to-dcp: --hf-dir is missing; give the folder with the safetensors files");
}

TEST_F(Environment, NamesAVariableThatIsNoFlag) {
  ::setenv(kWrong, "x", 1);
  EXPECT_EQ(refusal(words_), std::string("environment: ") + kWrong +
                                 " is no flag of hf-to-dcp; did you mean "
                                 "MM_CONVERT_GENERICDCPCONVERTER__HF_TO_DCP__DCP_DIR?");
}

TEST(InspectFlags, TakeOnePathOrTwo) {
  const auto one = std::any_cast<InspectArguments>(
      std::get<OptionalArguments>(parsed({"inspect", "a", "--json", "-", "--filter", "norm", "--boxes"})).values);
  EXPECT_THAT(one.paths, ElementsAre("a"));
  EXPECT_EQ(one.json, "-");
  EXPECT_EQ(one.filter, "norm");
  EXPECT_TRUE(one.boxes);
  for (const Words& words : {Words{"inspect", "--diff", "a", "b"}, Words{"inspect", "a", "--diff", "b"}}) {
    const auto two = std::any_cast<InspectArguments>(std::get<OptionalArguments>(parsed(words)).values);
    EXPECT_TRUE(two.diff);
    EXPECT_THAT(two.paths, ElementsAre("a", "b"));
  }
}

struct Bad {
  Words words;
  std::string message;
};

void PrintTo(const Bad& bad, std::ostream* out) { *out << ::testing::PrintToString(bad.words); }

class BadConversion : public ::testing::TestWithParam<Bad> {};

TEST_P(BadConversion, IsRefusedWithWhatToWrite) { EXPECT_EQ(refusal(GetParam().words), GetParam().message); }

INSTANTIATE_TEST_SUITE_P(
    All, BadConversion,
    ::testing::Values(
        Bad{{"convert"},
            "convert: no conversion is given; use convert hf-to-dcp, dcp-to-hf, dcp-to-dcp, hf-to-mcore, mcore-to-hf, "
            "hf-to-mm or mm-to-hf"},
        Bad{{"convert", "hf-to-dpc"}, "'hf-to-dpc' is no conversion; did you mean convert hf-to-dcp?"},
        Bad{{"convert", "merge"},
            "'merge' is no conversion; use convert hf-to-dcp, dcp-to-hf, dcp-to-dcp, hf-to-mcore, "
            "mcore-to-hf, hf-to-mm, mm-to-hf"},
        Bad{{"convert", "hf-to-dcp", "--hf-dir", "a"},
            "convert hf-to-dcp: --dcp-dir is missing; give a folder for the checkpoint"},
        Bad{{"convert", "dcp-to-hf", "--load-dir", "a"},
            "convert dcp-to-hf: --model-assets-dir is missing; give the folder with config.json and the tokenizer"},
        Bad{kImport + Words{"--dtyp", "bf16"}, "unknown flag --dtyp; did you mean --dtype?"},
        Bad{kImport + Words{"--dtype", "int8"}, "--dtype is int8; use as-stored, fp32, bf16, fp16"},
        Bad{kImport + Words{"more"}, "'more' belongs to no flag; see shardloom convert hf-to-dcp --help"},
        Bad{kImport + Words{"--tie-weight-mapping", "lm_head.weight"},
            "--tie-weight-mapping is lm_head.weight; use TARGET=SOURCE, two names of one tensor"},
        Bad{kExport + Words{"--shard-size", "5 gigabytes"},
            "--shard-size is 5 gigabytes; use a whole number of bytes of at least 1, or one of KB, MB, GB, KiB, MiB, "
            "GiB: "
            "5GB"},
        Bad{{"convert", "dcp-to-dcp", "--load-dir", "a", "--save-dir", "b", "--world-size", "0"},
            "--world-size is 0; use a whole number of at least 1"},
        Bad{{"inspect"}, "inspect: no path is given; use inspect PATH"},
        Bad{{"inspect", "a", "b"}, "inspect shows one path, but 2 are given; add --diff to compare two"},
        Bad{{"inspect", "--diff", "a"}, "inspect --diff compares two paths, but 1 is given; use inspect --diff A B"},
        Bad{{"inspect", "a", "--boxs"}, "unknown flag --boxs; did you mean --boxes?"}));

TEST(ConvertHelp, ShowsEachConversionWithItsFlags) {
  const auto help = std::get<EarlyExit>(parsed({"convert", "dcp-to-hf", "--help"}));
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.text, HasSubstr("--model-assets-dir,--model-configs DIR"));
  EXPECT_THAT(std::get<EarlyExit>(parsed({"mm-convert", "--help"})).text, HasSubstr("hf-to-dcp"));
}

TEST(Merge, TakesThreeFolders) {
  const auto merge =
      std::any_cast<MergeArguments>(
          std::get<OptionalArguments>(parsed({"merge", "--base", "b", "--adapter", "a", "--save", "s"})).values)
          .merge;
  EXPECT_EQ(merge.base, "b");
  EXPECT_EQ(merge.adapter, "a");
  EXPECT_EQ(merge.save, "s");
  EXPECT_EQ(refusal({"merge", "--base", "b", "--save", "s"}),
            "merge: --adapter is missing; give --adapter DIR, the adapters' folder");
}

}  // namespace
}  // namespace loom::cli
