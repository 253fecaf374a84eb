// Promise: every step leaves one line of JSON in the file, at once.
#include "engine/train/metrics.h"

#include <gtest/gtest.h>
#include <limits>
#include <nlohmann/json.hpp>
#include <spdlog/sinks/ostream_sink.h>
#include <sstream>

#include "engine/core/error.h"
#include "engine/core/log.h"
#include "tests/support/files.h"

namespace loom::train {
namespace {

using test::fresh_folder;
using test::message_of;
using test::read_file;
using test::write_file;

StepMetrics step(std::int64_t number) {
  return {.step = number,
          .loss = 2.5,
          .grad_norm = 0.75,
          .lr = 0.0003,
          .tokens_per_second = 12000.0,
          .peak_memory_bytes = {{"shard", 4096}, {"activation", 5'000'000'000}},
          .held_out_loss = std::nullopt};
}

constexpr const char* kStepOne = R"({"step":1,"loss":2.5,"grad_norm":0.75,"lr":0.0003,"tokens_per_second":12000.0,)"
                                 R"("peak_memory_bytes":{"shard":4096,"activation":5000000000}})"
                                 "\n";

TEST(MetricsWriter, WritesALineAStepAtOnce) {
  const auto path = fresh_folder() / "made" / "for" / "it" / "metrics.jsonl";
  MetricsWriter writer(path);
  writer.write(step(1));
  EXPECT_EQ(read_file(path), kStepOne);
  StepMetrics second = step(2);
  second.held_out_loss = 2.75;
  writer.write(second);
  std::istringstream lines(read_file(path));
  std::string line;
  std::getline(lines, line);
  std::getline(lines, line);
  EXPECT_EQ(nlohmann::json::parse(line)["held_out_loss"], 2.75);
  EXPECT_FALSE(std::getline(lines, line));
}

TEST(MetricsWriter, EmptiesTheFileOfAnEarlierRun) {
  const auto path = write_file(fresh_folder() / "metrics.jsonl", "old\n");
  MetricsWriter(path).write(step(1));
  EXPECT_EQ(read_file(path), kStepOne);
}

TEST(MetricsWriter, ContinuesTheFileOfAResumedRun) {
  const auto path = write_file(fresh_folder() / "metrics.jsonl", "old\n");
  MetricsWriter(path, MetricsMode::kAppend).write(step(1));
  EXPECT_EQ(read_file(path), std::string("old\n") + kStepOne);
}

TEST(MetricsWriter, WritesNullForWhatIsNotFiniteAndWarns) {
  std::ostringstream logged;
  const auto sink = std::make_shared<spdlog::sinks::ostream_sink_st>(logged);
  sink->set_pattern("%l: %v");
  logger().sinks().push_back(sink);
  const auto path = fresh_folder() / "metrics.jsonl";
  StepMetrics metrics = step(7);
  metrics.loss = std::numeric_limits<double>::quiet_NaN();
  metrics.held_out_loss = std::numeric_limits<double>::infinity();
  MetricsWriter(path).write(metrics);
  logger().sinks().pop_back();
  const auto line = nlohmann::json::parse(read_file(path));
  EXPECT_TRUE(line["loss"].is_null());
  EXPECT_TRUE(line["held_out_loss"].is_null());
  EXPECT_EQ(line["grad_norm"], 0.75);
  EXPECT_EQ(logged.str(),
            "warning: step 7: loss is nan; written as null\n"
            "warning: step 7: held_out_loss is inf; written as null\n");
}

TEST(MetricsWriter, NamesAFileItCannotOpen) {
  const auto folder = fresh_folder();
  EXPECT_EQ(message_of<ConfigError>([&] { MetricsWriter{folder}; }),
            folder.string() + ": cannot write metrics: Is a directory");
  const auto below_a_file = write_file(folder / "file", "x") / "metrics.jsonl";
  EXPECT_EQ(message_of<ConfigError>([&] { MetricsWriter{below_a_file}; }),
            below_a_file.string() + ": cannot write metrics: Not a directory");
}

TEST(MetricsWriter, NamesAFileItCannotFill) {
  MetricsWriter writer("/dev/full");
  EXPECT_EQ(message_of<Error>([&] { writer.write(step(3)); }),
            "/dev/full: cannot write the metrics of step 3: No space left on device");
}

}  // namespace
}  // namespace loom::train
