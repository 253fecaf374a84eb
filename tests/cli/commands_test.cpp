// Promise: the help lists the commands of this build, and a word that is no command is answered with what to write.
// World:   command lines; no file is opened. Compiled where a build has all commands.
#include <gmock/gmock.h>

#include "tests/cli/parsed.h"

namespace loom::cli {
namespace {

using ::testing::HasSubstr;

TEST(Help, ListsTheCommandsAndEndsWithZero) {
  const EarlyExit help = std::get<EarlyExit>(parsed({"--help"}));
  EXPECT_EQ(help.code, 0);
  for (const char* part :
       {"train", "Train a model on one or more ranks.", "generate", "Continue a text with a trained model.",
        "Example:\n  shardloom train ", "shardloom train --help"}) {
    EXPECT_THAT(help.text, HasSubstr(part));
  }
}

TEST(Commands, AWordThatIsNoneIsAnsweredWithThem) {
  const std::string all =
      "train, plan, generate, chat, preprocess, llava_instruct_2_mllm_demo_format, compare, explain, calibrate, convert, "
      "inspect, merge, config, lint, adapt, torchrun, msrun or completion";
  EXPECT_EQ(refusal({}), "no command is given; use shardloom " + all + " (--help lists their flags)");
  EXPECT_EQ(refusal({"trian"}), "'trian' is not a command; did you mean train?");
  EXPECT_EQ(refusal({"evaluate"}), "'evaluate' is not a command; use " + all);
  EXPECT_EQ(refusal({"--lr", "1"}), "'--lr' is not a command; use " + all);
}

}  // namespace
}  // namespace loom::cli
