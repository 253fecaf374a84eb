// Promise: the steps of a run are read from metrics.jsonl or event files; of a step that was made again after a resume
//          the later counts; broken lines are refused with file and line.
#include "engine/observe/run_curves.h"

#include <cmath>
#include <gmock/gmock.h>
#include <limits>

#include "engine/core/error.h"
#include "engine/formats/events/event_file.h"
#include "engine/observe/metrics_file.h"
#include "tests/support/files.h"

namespace loom::observe {
namespace {

using test::fresh_folder;
using test::message_of;
using test::write_file;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr std::optional<double> kNull = std::nullopt;

// --- metrics.jsonl

TEST(MetricsFile, OfAResumedRunHasTheLaterLineOfAStepThatStandsTwice) {
  const auto path = write_file(fresh_folder() / "metrics.jsonl",
                               "{\"step\":1,\"loss\":5}\n{\"step\":2,\"loss\":4,\"held_out_loss\":9}\n"
                               "{\"step\":3,\"loss\":3}\n{\"step\":2,\"loss\":40}\n{\"step\":4,\"loss\":2}\n");
  const MetricsFile file = read_metrics(path);
  std::vector<std::string> lines;
  for (const auto& line : file.lines) lines.push_back(line.dump());
  EXPECT_THAT(lines, ElementsAre(R"({"step":1,"loss":5})", R"({"step":2,"loss":40})", R"({"step":3,"loss":3})",
                                 R"({"step":4,"loss":2})"));
  EXPECT_EQ(file.repeated, 1);
}

TEST(MetricsFile, KeepsTheStepWhereAnEvaluationAloneFollows) {
  const auto path =
      write_file(fresh_folder() / "metrics.jsonl",
                 "{\"step\":2,\"loss\":4}\n{\"step\":2,\"held_out_loss\":9}\n{\"step\":0,\"held_out_loss\":7}");
  const MetricsFile file = read_metrics(path);
  ASSERT_EQ(file.lines.size(), 2u);
  EXPECT_EQ(file.lines[0].dump(), R"({"step":0,"held_out_loss":7})");
  EXPECT_EQ(file.lines[1].dump(), R"({"step":2,"loss":4,"held_out_loss":9})");
  EXPECT_EQ(file.repeated, 0);
}

class BrokenLine : public ::testing::Test {
 protected:
  std::string refusal(const std::string& line) const {
    const auto path = write_file(folder / "m.jsonl", "{\"step\":1}\n" + line);
    const std::string text = message_of<ConfigError>([&] { read_metrics(path); });
    const std::string begin = path.string() + ":2: ";
    EXPECT_THAT(text, ::testing::StartsWith(begin));
    return text.substr(std::min(text.size(), begin.size()));
  }
  const std::filesystem::path folder = fresh_folder();
};

TEST_F(BrokenLine, IsRefusedWithFileAndLine) {
  EXPECT_EQ(refusal("{\"step\":2,\"lo"), "is no JSON from column 14 on; remove the line, or give another file");
  EXPECT_EQ(refusal("\n"), "is no JSON from column 1 on; remove the line, or give another file");
  EXPECT_EQ(refusal("{\"step\":2,\"loss\":1e577}"),
            "has a number that is out of range; remove the line, or give another file");
  EXPECT_EQ(refusal("[1]\n"), "is [1], not the JSON object of a step");
  EXPECT_EQ(refusal("{\"loss\":2}\n"), "has no step; give the metrics.jsonl of a run");
  EXPECT_EQ(refusal("{\"step\":-1}\n"), "step is -1; it is a whole number of at least 0");
  EXPECT_EQ(refusal("{\"step\":1.5}\n"), "step is 1.5; it is a whole number of at least 0");
  EXPECT_EQ(refusal("{\"step\":18446744073709551615}\n"),
            "step is 18446744073709551615; it is a whole number of at least 0");
  EXPECT_EQ(refusal("{\"step\":2,\"loss\":\"2\"}\n"), "loss is \"2\"; it is a number or null");
  EXPECT_EQ(refusal("{\"step\":2,\"grad_norm\":[1]}\n"), "grad_norm is [1]; it is a number or null");
}

TEST_F(BrokenLine, ThatIsHugeOrDeepIsRefusedWithoutHarm) {
  EXPECT_EQ(refusal(std::string((1 << 20) + 1, ' ')), "the line has 1048577 bytes; at most 1048576 are read");
  const std::string too_deep = "is nested deeper than 64 levels; give the metrics.jsonl of a run";
  EXPECT_EQ(refusal(std::string(1 << 20, '[')), too_deep);
  const std::string deep = std::string(400'000, '[') + std::string(400'000, ']');
  EXPECT_EQ(refusal("{\"step\":1,\"loss\":" + deep + "}"), too_deep);
}

// --- Sources

TEST(RunCurves, AreReadFromMetricsAndTheFolderOfSave) {
  const auto folder = fresh_folder();
  const auto path =
      write_file(folder / "metrics.jsonl",
                 "{\"step\":1,\"loss\":5.5,\"grad_norm\":1}\n{\"step\":2,\"loss\":null,\"grad_norm\":2}\n");
  for (const auto& source : {path, folder}) {
    const RunCurves run = read_run(source);
    EXPECT_EQ(run.source, path.string());
    EXPECT_FALSE(run.floats);
    EXPECT_THAT(run.loss, ElementsAre(Pair(1, 5.5), Pair(2, kNull)));
    EXPECT_THAT(run.grad_norm, ElementsAre(Pair(1, 1), Pair(2, 2)));
  }
}

std::filesystem::path event_file(const std::filesystem::path& folder, double time,
                                 const std::vector<std::tuple<int, std::string, double>>& scalars) {
  io::EventFile file = io::EventFile::create(folder, time);
  for (const auto& [step, tag, value] : scalars) file.add(time, step, tag, static_cast<float>(value));
  return file.path();
}

TEST(RunCurves, AreReadFromTheEventFilesOfMegatronAndOfTorchtitan) {
  const auto folder = fresh_folder();
  const auto path = event_file(
      folder, 10, {{1, "lm loss", 5.5}, {8, "lm loss vs samples", 5.5}, {1, "grad-norm", 2}, {2, "lm loss", NAN}});
  EXPECT_THAT(read_run(path).loss, ElementsAre(Pair(1, 5.5), Pair(2, kNull)));
  event_file(folder, 9, {{1, "lm loss", 7}, {3, "lm loss", 4}});
  const RunCurves run = read_run(folder);
  EXPECT_EQ(run.source, folder.string() + " (2 event files)");
  EXPECT_TRUE(run.floats);
  EXPECT_THAT(run.loss, ElementsAre(Pair(1, 5.5), Pair(2, kNull), Pair(3, 4)));
  EXPECT_EQ(run.repeated, 1);
  EXPECT_THAT(run.grad_norm, ElementsAre(Pair(1, 2)));

  const auto titan = event_file(folder / "titan", 1, {{1, "loss_metrics/global_avg_loss", 3}, {1, "grad_norm", 2}});
  EXPECT_THAT(read_run(titan).loss, ElementsAre(Pair(1, 3)));
  EXPECT_THAT(read_run(titan).grad_norm, ElementsAre(Pair(1, 2)));
}

TEST(RunCurves, OfWhatIsNoRunAreRefused) {
  const auto folder = fresh_folder();
  EXPECT_EQ(message_of<ConfigError>([&] { read_run(folder); }),
            folder.string() +
                ": holds no metrics.jsonl and no event files of TensorBoard; give the folder of --save or of "
                "--tensorboard-dir, or a file");
  EXPECT_EQ(message_of<ConfigError>([&] { read_run(folder / "none"); }),
            (folder / "none").string() + ": cannot read: No such file or directory");
}

// --- Comparison

TEST(Comparison, OfTheSameCurvesFindsNothing) {
  const Curve curve{{1, 5.5}, {2, kNull}, {3, 4.0}};
  const CurveComparison found = compare_curves(curve, curve, 0, false);
  EXPECT_EQ(found.common, 3);
  EXPECT_EQ(found.different, 0);
  EXPECT_EQ(found.first_difference, std::nullopt);
  EXPECT_EQ(found.max_relative_error, 0);
}

TEST(Comparison, NamesTheFirstDifferenceAndTheErrors) {
  const Curve a{{1, 4.0}, {2, 4.0}, {3, 2.0}, {9, 1.0}};
  const Curve b{{0, 1.0}, {1, 4.0}, {2, 5.0}, {3, 1.0}};
  const CurveComparison found = compare_curves(a, b, 0, false);
  EXPECT_EQ(found.common, 3);
  EXPECT_EQ(found.first, 1);
  EXPECT_EQ(found.last, 3);
  EXPECT_EQ(found.only_a, 1);
  EXPECT_EQ(found.only_b, 1);
  EXPECT_EQ(found.different, 2);
  ASSERT_TRUE(found.first_difference);
  EXPECT_EQ(found.first_difference->step, 2);
  EXPECT_EQ(found.first_difference->a, 4.0);
  EXPECT_EQ(found.first_difference->b, 5.0);
  EXPECT_EQ(found.max_relative_error, 0.5);
  EXPECT_EQ(found.worst_step, 3);
  EXPECT_EQ(found.mean_relative_error, 0.25);
}

TEST(Comparison, TakesValuesWithinTheToleranceForTheSame) {
  const Curve a{{1, 4.0}, {2, 0.0}};
  EXPECT_EQ(compare_curves(a, {{1, 5.0}, {2, 0.0}}, 0.25, false).different, 0);
  EXPECT_EQ(compare_curves(a, {{1, 5.1}, {2, 0.0}}, 0.25, false).different, 1);
  const CurveComparison of_zero = compare_curves(a, {{1, 4.0}, {2, 1e-9}}, 1e9, false);
  EXPECT_EQ(of_zero.different, 1);
  EXPECT_EQ(of_zero.max_relative_error, std::numeric_limits<double>::infinity());
}

TEST(Comparison, TakesNullForTheSameAsNullAlone) {
  const Curve a{{1, kNull}, {2, kNull}};
  const CurveComparison found = compare_curves(a, {{1, kNull}, {2, 3.0}}, 1e9, false);
  EXPECT_EQ(found.different, 1);
  EXPECT_EQ(found.first_difference->step, 2);
  EXPECT_EQ(found.first_difference->a, kNull);
  EXPECT_EQ(found.mean_relative_error, 0);
}

TEST(Comparison, RoundsToFloatWhereOneSideHasFloats) {
  const Curve of_metrics{{1, 5.123456789012345}};
  const Curve of_events{{1, double{5.123456789012345F}}};
  EXPECT_EQ(compare_curves(of_metrics, of_events, 0, true).different, 0);
  EXPECT_EQ(compare_curves(of_metrics, of_events, 0, false).different, 1);
}

}  // namespace
}  // namespace loom::observe
