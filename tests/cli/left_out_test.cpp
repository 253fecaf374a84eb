// Promise: a command that a build leaves out is refused in one sentence that names its option, and the help lists the
//          others alone.
// World:   command lines; no file is opened. Compiled where LOOM_TEXT, LOOM_CONVERT and LOOM_TALK are OFF.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/cli/parsed.h"

namespace loom::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string left_out(const std::string& command, const std::string& option) {
  return "'" + command + "' is not in this program, which was built with " + option + "=OFF; build it with cmake -D" +
         option + "=ON";
}

TEST(LeftOut, ACommandNamesItsOption) {
  for (const char* command : {"generate", "chat"}) {
    EXPECT_EQ(refusal({command, "out", "--top-k", "3"}), left_out(command, "LOOM_TALK"));
  }
  for (const char* command : {"preprocess", "preprocess_data"}) {
    EXPECT_EQ(refusal({command, "--input", "a"}), left_out(command, "LOOM_TEXT"));
  }
  EXPECT_EQ(refusal({"llava_instruct_2_mllm_demo_format"}),
            left_out("llava_instruct_2_mllm_demo_format", "LOOM_IMAGES"));
  for (const char* command : {"convert", "mm-convert", "convert_ckpt", "convert_ckpt_v2.py", "merge", "inspect"}) {
    EXPECT_EQ(refusal({command, "a", "b"}), left_out(command, "LOOM_CONVERT"));
  }
}

TEST(LeftOut, HelpCompletionAndAdviceListTheOthers) {
  EXPECT_EQ(refusal({"evaluate"}),
            "'evaluate' is not a command; use train, plan, compare, explain, calibrate, config, lint, adapt, "
            "torchrun, msrun or completion");
  for (const Words& words : {Words{"--help"}, Words{"completion", "bash"}}) {
    const std::string text = std::get<EarlyExit>(parsed(words)).text;
    EXPECT_THAT(text, HasSubstr("compare"));
    for (const char* command : {"generate", "chat", "preprocess", "convert", "merge", "inspect"}) {
      // As the help and a script list it; a flag is --merge-file.
      for (const char* before : {" ", "'"}) EXPECT_THAT(text, Not(HasSubstr(fmt::format("{}{} ", before, command))));
    }
  }
}

}  // namespace
}  // namespace loom::cli
