// Promise: the report of a resumed run records the second step of that run, and shows each step once, as it was made
//          last.
// World:   a dry device, kernels by hand, an invented profile's time.
#include "engine/observe/report_run.h"

#include <gmock/gmock.h>

#include "engine/observe/report_configuration.h"
#include "tests/support/files.h"
#include "tests/support/one_rank.h"
#include "tests/support/tiny_profile.h"

namespace loom::observe {
namespace {

using nlohmann::ordered_json;

ordered_json data_of(const std::filesystem::path& page) {
  const std::string text = test::read_file(page);
  const std::string begin = R"(<script type="application/json" id="data">)";
  const std::size_t at = text.find(begin) + begin.size();
  return ordered_json::parse(text.substr(at, text.find("</script>", at) - at));
}

void make_step(RunReport& report, device::Device& device, std::int64_t step) {
  report.begin_step(step);
  device.log().add_phase("forward");
  device.log().add_kernel(device::StreamId::kCompute, "kernel", {.read_bytes = 1000 * (step + 1)});
  report.end_step(step);
}

TEST(ReportOfAResumedRun, RecordsItsSecondStepAndShowsEachStepOnce) {
  const auto folder = test::fresh_folder();
  test::OneRank rank({.dry_run = true});
  train::TrainSections arguments;
  arguments.schedule.train_iters = 20;
  arguments.log.metrics_path = test::write_file(folder / "metrics.jsonl",
                                                "{\"step\":10,\"loss\":3}\n{\"step\":11,\"loss\":2}\n"
                                                "{\"step\":11,\"loss\":2.5}\n{\"step\":12,\"loss\":1}\n");
  ReportOptions options;
  options.path = folder / "report.html";
  const ReportInputs inputs{test::tiny_profile(), ordered_json::object()};
  RunReport report(arguments, options, inputs, {.model = "M", .parameters = 1, .micro_batches = 1});
  for (const std::int64_t step : {10, 11, 12}) make_step(report, rank.device(), step);
  report.write();
  const ordered_json data = data_of(folder / "report.html");
  EXPECT_EQ(data.at("recorded_step"), 12);
  EXPECT_EQ(data.at("time").at("step_ns"), 12'000);
  EXPECT_EQ(data.at("steps_of_run"), 3);
  EXPECT_EQ(data.at("steps").dump(), R"([{"step":10,"loss":3},{"step":11,"loss":2.5},{"step":12,"loss":1}])");
}

TEST(ReportOfAResumedRun, OfOneStepRecordsThatOne) {
  const auto folder = test::fresh_folder();
  test::OneRank rank({.dry_run = true});
  train::TrainSections arguments;
  arguments.schedule.train_iters = 20;
  arguments.log.metrics_path = test::write_file(folder / "metrics.jsonl", "{\"step\":20,\"loss\":3}\n");
  ReportOptions options;
  options.path = folder / "report.html";
  const ReportInputs inputs{test::tiny_profile(), ordered_json::object()};
  RunReport report(arguments, options, inputs, {.model = "M", .parameters = 1, .micro_batches = 1});
  make_step(report, rank.device(), 19);
  report.write();
  EXPECT_EQ(data_of(folder / "report.html").at("recorded_step"), 20);
}

TEST(ReportOfAModel, ShowsItsConfigurationWhetherAFileOrAFolderIsGiven) {
  const auto folder = test::fresh_folder();
  test::write_file(folder / "config.json", "{\"model_type\": \"qwen2\"}");
  models::ModelOptions model;
  for (const char* given : {"", "config.json"}) {
    model.model_config = folder / given;
    const ordered_json files = configuration_json(model, {}, {}, {}).at("files");
    ASSERT_EQ(files.size(), 1U);
    EXPECT_EQ(files[0].at("path"), (folder / "config.json").string());
    EXPECT_EQ(files[0].at("text"), "{\"model_type\": \"qwen2\"}");
  }
}

}  // namespace
}  // namespace loom::observe
