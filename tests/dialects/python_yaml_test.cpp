// Promise: files are read as PyYAML's safe loader and the tool behind it read them: anchors, merges, numbers that
//          are texts to it, None, Python's booleans; a repeated anchor and hostile files are refused in bounded
//          time.
// World:   MindSpeed-MM's six sections.
#include <chrono>

#include "tests/dialects/translated.h"

namespace loom::dialects {
namespace {

using test::message_of;
using ::testing::HasSubstr;

TEST(PythonYaml, AnchorsAndMergesAreWrittenOut) {
  const Translation file = read(
      "shared: &shared\n  lr: 2.0e-4\n  seed: 7\n"
      "training:\n  <<: *shared\n  seed: 8\n  train_iters: 4\n"
      "tools: {}\n");
  EXPECT_THAT(file.refused, ::testing::IsEmpty());
  EXPECT_EQ(flag_in(file, "--lr"), "2.0e-4");
  EXPECT_EQ(flag_in(file, "--seed"), "8");  // own keys win
  EXPECT_EQ(origin_of(file, "--lr"), "f.yaml:2:7 training.lr");
}

TEST(PythonYaml, AListOfMergesTakesTheFirst) {
  const Translation file =
      read("a: &a {lr: 1.0e-4}\nb: &b {lr: 2.0e-4, seed: 3}\ntraining:\n  <<: [*a, *b]\ntools: {}\n");
  EXPECT_EQ(flag_in(file, "--lr"), "1.0e-4");
  EXPECT_EQ(flag_in(file, "--seed"), "3");
}

TEST(PythonYaml, ARepeatedAnchorNamesBothLines) {
  const std::string text = "a: &path /one\nb: &path /two\nmodel:\n  model_name_or_path: *path\ntools: {}\n";
  EXPECT_EQ(message_of<ConfigError>([&] { read(text); }),
            "f.yaml:2:4: the anchor &path is defined again, "
            "first at line 1; PyYAML reads no such file: rename one of them");
}

TEST(PythonYaml, ScalarsAreWhatTheToolMakesOfThem) {
  const Translation file = read(
      "training:\n  lr: 1e-5\n  adam_eps: \"1e-9\"\n  no_load_optim: yes\n  no_save_rng: False\n  save: None\n"
      "  train_iters: 3\t\n"
      "tools: {}\n");
  EXPECT_THAT(file.refused, ::testing::IsEmpty());
  EXPECT_EQ(flag_in(file, "--lr"), "1e-5");  // a text to YAML 1.1
  EXPECT_EQ(flag_in(file, "--adam-eps"), "1e-9");
  EXPECT_EQ(flag_in(file, "--no-load-optim"), "on");
  EXPECT_EQ(flag_in(file, "--no-save-rng"), "none");
  EXPECT_EQ(flag_in(file, "--save"), "none");
  EXPECT_EQ(flag_in(file, "--train-iters"), "3");
}

TEST(PythonYaml, HostileFilesAreRefusedInBoundedTime) {
  const auto begin = std::chrono::steady_clock::now();
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    bomb += fmt::format("a{}: &a{} [", i, i);
    for (int j = 0; j < 10; ++j) bomb += fmt::format("{}*a{}", j == 0 ? "" : ", ", i - 1);
    bomb += "]\n";
  }
  EXPECT_THAT(message_of<ConfigError>([&] { read(bomb + "tools: {}\n"); }), HasSubstr("aliases repeat too much"));
  std::string merges = "a0: &a0 {x0: 1}\n";
  for (int i = 1; i < 60; ++i) merges += fmt::format("a{}: &a{} {{<<: [*a{}, *a{}], x{}: 1}}\n", i, i, i - 1, i - 1, i);
  EXPECT_NE(message_of<ConfigError>([&] { read(merges + "tools: {}\n"); }), "");
  EXPECT_NE(message_of<ConfigError>([&] { read(std::string(5000, '[') + "\n"); }), "");
  const std::string key(1 << 20, 'k');
  EXPECT_LT(refusal("tools:\n  " + key + ": 1\n").size(), 2000U);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

}  // namespace
}  // namespace loom::dialects
