// Promise: every step leaves one line of JSON in the file, at once, or it is said which are missing; earlier lines
//          stay.
#include "engine/log/metrics.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/core/error.h"
#include "tests/support/files.h"
#include "tests/support/logged.h"

namespace loom::log {
namespace {

using test::fresh_folder;
using test::Logged;
using test::message_of;
using test::read_file;
using test::write_file;

train::StepMetrics step(std::int64_t number) {
  return {.step = number,
          .loss = 2.5,
          .grad_norm = 0.75,
          .lr = 0.0003,
          .tokens_per_second = 12000.0,
          .peak_memory_bytes = {{"shard", 4096}, {"activation", 5'000'000'000}},
          .peak_host_memory_bytes = 8192,
          .held_out_loss = std::nullopt};
}

constexpr const char* kStepOne =
    R"({"step":1,"loss":2.5,"grad_norm":0.75,"lr":0.0003,"tokens_per_second":12000.0,)"
    R"("peak_memory_bytes":{"shard":4096,"activation":5000000000},"peak_host_memory_bytes":8192})"
    "\n";

TEST(MetricsWriter, SaysTheLossScaleAndWhichStepWasSkippedWithoutAWarning) {
  const auto path = fresh_folder() / "metrics.jsonl";
  const Logged logged;
  MetricsWriter writer(path);
  train::StepMetrics metrics = step(1);
  metrics.peak_memory_bytes.clear();
  metrics.loss_is_scaled = true;
  metrics.loss_scale = 32768;
  writer.write(metrics);
  metrics.skipped = true;
  metrics.grad_norm = std::numeric_limits<double>::infinity();
  writer.write(metrics);
  EXPECT_EQ(read_file(path),
            R"({"step":1,"loss":2.5,"grad_norm":0.75,"lr":0.0003,"loss_scale":32768.0,"tokens_per_second":12000.0,)"
            R"("peak_memory_bytes":{},"peak_host_memory_bytes":8192})"
            "\n"
            R"({"step":1,"loss":2.5,"grad_norm":null,"lr":0.0003,"loss_scale":32768.0,"skipped":true,)"
            R"("tokens_per_second":12000.0,"peak_memory_bytes":{},"peak_host_memory_bytes":8192})"
            "\n");
  EXPECT_EQ(logged.text(), "");
}

TEST(MetricsWriter, WritesALineAStepAtOnce) {
  const auto path = fresh_folder() / "made" / "for" / "it" / "metrics.jsonl";
  MetricsWriter writer(path);
  writer.write(step(1));
  EXPECT_EQ(read_file(path), kStepOne);
  train::StepMetrics second = step(2);
  second.held_out_loss = 2.75;
  writer.write(second);
  std::istringstream lines(read_file(path));
  std::string line;
  std::getline(lines, line);
  std::getline(lines, line);
  EXPECT_EQ(nlohmann::json::parse(line)["held_out_loss"], 2.75);
  EXPECT_FALSE(std::getline(lines, line));
}

TEST(MetricsWriter, KeepsTheFileOfAnEarlierRun) {
  const Logged logged;
  const auto path = write_file(fresh_folder() / "metrics.jsonl", "old\n");
  MetricsWriter(path).write(step(1));
  MetricsWriter(path).write(step(1));
  EXPECT_EQ(read_file(path), kStepOne);
  EXPECT_EQ(read_file(path.parent_path() / "metrics.1.jsonl"), "old\n");
  EXPECT_EQ(read_file(path.parent_path() / "metrics.2.jsonl"), kStepOne);
  const std::string aside = (path.parent_path() / "metrics").string();
  EXPECT_EQ(logged.text(), fmt::format("info: {0}: the metrics of an earlier run are kept in {1}.1.jsonl\n"
                                       "info: {0}: the metrics of an earlier run are kept in {1}.2.jsonl\n",
                                       path.string(), aside));
}

TEST(MetricsWriter, ContinuesTheFileOfAResumedRun) {
  const auto path = write_file(fresh_folder() / "metrics.jsonl", "old\n");
  MetricsWriter(path, MetricsMode::kAppend).write(step(1));
  EXPECT_EQ(read_file(path), std::string("old\n") + kStepOne);
}

TEST(MetricsWriter, EndsTheLastLineOfAnEarlierRunAndRemovesOneThatIsCutOff) {
  const Logged logged;
  const auto whole = write_file(fresh_folder() / "metrics.jsonl", "{\"step\":0}");
  MetricsWriter(whole, MetricsMode::kAppend).write(step(1));
  EXPECT_EQ(read_file(whole), std::string("{\"step\":0}\n") + kStepOne);
  EXPECT_EQ(logged.text(), "");
  const std::string long_line = "{\"step\":1,\"a\":\"" + std::string(10'000, 'x');
  const auto cut = write_file(whole, "{\"step\":0}\n" + long_line);
  MetricsWriter(cut, MetricsMode::kAppend).write(step(1));
  EXPECT_EQ(read_file(cut), std::string("{\"step\":0}\n") + kStepOne);
  EXPECT_EQ(logged.text(), fmt::format("warning: {}: the last line was cut off after {} bytes, as by a run that was "
                                       "killed; it is removed\n",
                                       cut.string(), long_line.size()));
}

TEST(MetricsWriter, WritesNullForWhatIsNotFiniteAndWarnsOnce) {
  const Logged logged;
  const auto path = fresh_folder() / "metrics.jsonl";
  train::StepMetrics metrics = step(7);
  metrics.loss = std::numeric_limits<double>::quiet_NaN();
  metrics.held_out_loss = std::numeric_limits<double>::infinity();
  {
    MetricsWriter writer(path);
    writer.write(metrics);
    writer.write(metrics);
  }
  const std::string text = read_file(path);
  const auto line = nlohmann::json::parse(text.substr(0, text.find('\n')));
  EXPECT_TRUE(line["loss"].is_null());
  EXPECT_TRUE(line["held_out_loss"].is_null());
  EXPECT_EQ(line["grad_norm"], 0.75);
  EXPECT_EQ(logged.text(),
            "warning: step 7: loss is nan, held_out_loss is inf; written as null, here and in the steps to come\n");
}

TEST(MetricsWriter, NamesAFileItCannotOpen) {
  const auto folder = fresh_folder();
  EXPECT_EQ(message_of<ConfigError>([&] { MetricsWriter{folder}; }),
            folder.string() + ": is a folder; give the path of a file");
  const auto below_a_file = write_file(folder / "file", "x") / "metrics.jsonl";
  EXPECT_EQ(message_of<ConfigError>([&] { MetricsWriter{below_a_file}; }),
            below_a_file.string() + ": cannot write metrics: Not a directory");
}

TEST(MetricsWriter, GoesOnWithoutLinesItCannotWriteAndSaysWhichAreMissing) {
  const Logged logged;
  MetricsWriter writer("/dev/full");
  EXPECT_EQ(writer.problem(), std::nullopt);
  writer.write(step(3));
  writer.write(step(4));
  EXPECT_EQ(writer.problem(), "/dev/full: the metrics of 2 steps are missing (step 3: No space left on device)");
  EXPECT_EQ(logged.text(),
            "warning: /dev/full: cannot write the metrics of step 3: No space left on device; training goes on without "
            "them\n");
}

}  // namespace
}  // namespace loom::log
