// Promise: examples/finetune_chat/finetune_chat.sh goes from nothing to a model that answers a question of its data;
//          what it leaves is what its page names; it does not write over a folder.
// World:   the built program, under bash.
#include <array>
#include <cstdio>
#include <filesystem>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <string>
#include <sys/wait.h>

#include "tests/support/files.h"

namespace loom {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

struct Outcome {
  int status = -1;
  std::string text;
};

Outcome run_script(const std::filesystem::path& folder) {
  const std::string command = fmt::format("SHARDLOOM='{}' bash '{}/examples/finetune_chat/finetune_chat.sh' '{}' 2>&1",
                                          SHARDLOOM_PROGRAM, LOOM_SOURCE_DIR, folder.string());
  Outcome run;
  FILE* pipe = ::popen(command.c_str(), "r");
  std::array<char, 4096> buffer{};
  for (std::size_t got = 0; (got = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    run.text.append(buffer.data(), got);
  }
  const int status = ::pclose(pipe);
  run.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return run;
}

TEST(FinetuneChat, AnswersAQuestionOfItsData) {
  const std::filesystem::path folder = test::fresh_folder() / "run";
  const Outcome run = run_script(folder);
  ASSERT_EQ(run.status, 0) << run.text;
  EXPECT_THAT(run.text, HasSubstr("LoRA of rank 16, scale 2 (alpha 32) on 28 modules: "));
  EXPECT_THAT(run.text, EndsWith("> What is the capital of Italy?\nThe capital of Italy is Rome.\n"));
  for (const char* file : {"base/model.safetensors", "base/tokenizer.json", "alpaca_packed_labels_document.idx",
                           "adapters/adapter_config.json", "tuned/model.safetensors", "tuned/tokenizer_config.json"}) {
    EXPECT_TRUE(std::filesystem::exists(folder / file)) << file;
  }
  const Outcome again = run_script(folder);
  EXPECT_EQ(again.status, 1);
  EXPECT_THAT(again.text, EndsWith("exists; remove it or give another folder\n"));
}

}  // namespace
}  // namespace loom
