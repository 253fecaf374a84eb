// Promise: llava_instruct_2_mllm_demo_format takes the flags of MindSpeed-MM's tool, with its defaults, and refuses
//          others.
// World:   command lines; no file is opened.
#include <gmock/gmock.h>

#include "engine/multimodal/llava_converter.h"
#include "tests/cli/parsed.h"

namespace loom::cli {
namespace {

using ::testing::HasSubstr;

multimodal::LlavaConversion conversion(const Words& words) {
  return std::any_cast<multimodal::LlavaConversion>(std::get<OptionalArguments>(parsed(words)).values);
}

const Words kCommand{"llava_instruct_2_mllm_demo_format"};

TEST(LlavaFlags, HaveTheDefaultsOfThePublishedTool) {
  const auto options = conversion(kCommand);
  EXPECT_EQ(options.coco_path, "./data/COCO2017");
  EXPECT_EQ(options.llava_json_path, "./data/llava_instruct_150k.json");
  EXPECT_EQ(options.output_json_path, "./data/mllm_format_llava_instruct_data.json");
}

TEST(LlavaFlags, AreTakenWithDashesAndUnderscores) {
  const auto options =
      conversion(kCommand + Words{"--coco_path", "c", "--llava-json-path", "in.json", "--output_json_path=out.json"});
  EXPECT_EQ(options.coco_path, "c");
  EXPECT_EQ(options.llava_json_path, "in.json");
  EXPECT_EQ(options.output_json_path, "out.json");
}

TEST(LlavaFlags, RefuseOthers) {
  EXPECT_EQ(refusal(kCommand + Words{"--coco-paht", "c"}), "unknown flag --coco-paht; did you mean --coco-path?");
  EXPECT_THAT(refusal(kCommand + Words{"stray"}), HasSubstr("'stray' belongs to no flag"));
}

TEST(LlavaFlags, AreInTheHelp) {
  const EarlyExit help = std::get<EarlyExit>(parsed(kCommand + Words{"--help"}));
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.text, HasSubstr("--coco-path DIR"));
}

}  // namespace
}  // namespace loom::cli
