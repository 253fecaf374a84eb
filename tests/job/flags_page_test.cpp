// Promise: docs/flags.md has every key of the table with its flag, value, default, commands and help.
// World:   this checkout. With LOOM_WRITE_DOCS in the environment the page is written.
#include <cstdlib>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <gtest/gtest.h>

#include "engine/job/key.h"
#include "tests/support/files.h"

namespace loom::job {
namespace {

constexpr const char* kIntroduction =
    "# Flags of train and plan\n\n"
    "One row per key of the job; `shardloom train --help all` prints the same. A program of your own (`pretrain()`)\n"
    "has all flags but the marked ones. Dashes and underscores are equal: `--micro_batch_size` is\n"
    "`--micro-batch-size`.\n"
    "The page is made from the table in `engine/job`; `tests/job/flags_page_test.cpp` compares them.\n";

std::string cell(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string flags_text(const Key& key) {
  std::string text = fmt::format("`{}`", key.flags);
  for (std::size_t at = 0; (at = text.find(',', at)) != std::string::npos; at += 4) text.replace(at, 1, "`, `");
  for (std::size_t at = 0; (at = text.find('!')) != std::string::npos;) text.erase(at, 1);
  return text;
}

std::string value_text(const Key& key) {
  if (key.kind == Kind::kToggle) return "";
  const bool several = key.kind == Kind::kTexts || key.kind == Kind::kNumbers;
  const std::string type =
      key.kind == Kind::kChoice ? fmt::format("{}", fmt::join(key.words(), ", ")) : std::string(key.type);
  return several ? type + " ..." : type;
}

std::string commands_text(const Key& key) {
  const std::string_view commands = !key.in_plan ? "train" : !key.in_train ? "plan" : "train, plan";
  return fmt::format("{}{}", commands, key.in_users_programs ? "" : "; `shardloom` only");
}

std::string page() {
  std::string text = kIntroduction, heading;
  for (const Key& key : keys()) {
    if (key.heading != heading) {
      heading = key.heading;
      text += fmt::format(
          "\n## {}\n\n| flag | value | default | commands | meaning |\n| --- | --- | --- | --- | --- |\n", heading);
    }
    text += fmt::format("| {} | {} | {} | {} | {} |\n", flags_text(key), cell(value_text(key)), cell(default_text(key)),
                        commands_text(key), cell(key.about));
  }
  return text;
}

TEST(FlagsPage, IsWhatTheTableSays) {
  const std::filesystem::path path = std::filesystem::path(LOOM_SOURCE_DIR) / "docs/flags.md";
  if (std::getenv("LOOM_WRITE_DOCS") != nullptr) std::ofstream(path) << page();
  EXPECT_EQ(test::read_file(path), page()) << "write it anew: LOOM_WRITE_DOCS=1 build/release/tests/job/job_test";
}

}  // namespace
}  // namespace loom::job
