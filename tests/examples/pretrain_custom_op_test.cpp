// Promise: a program whose model calls an operator of a library trains with --custom-op-library, on any number of
//          ranks, and plans with the operator's cost; without the library, or with a wrong one, it says what is
//          missing.
// World:   the built example and its library; one and two ranks as threads; README.md as text.
#include <gmock/gmock.h>

#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;

const std::string kLibrary = SCALED_GELU;
const Words kSteps{"--data-path",
                   LOOM_SOURCE_DIR "/README.md",
                   "--held-out-fraction",
                   "0",
                   "--seq-length",
                   "32",
                   "--global-batch-size",
                   "8",
                   "--micro-batch-size",
                   "4",
                   "--lr",
                   "1e-2",
                   "--train-iters",
                   "12",
                   "--metrics-path",
                   "metrics.jsonl"};
const Words kLoaded{"--custom-op-library", kLibrary};

class PretrainCustomOp : public ::testing::Test {
 protected:
  std::vector<double> losses(const Words& more) const {
    const Outcome outcome = folder_.run(kSteps + kLoaded + more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::vector<double> found;
    for (const auto& line : folder_.metrics("metrics.jsonl")) found.push_back(line.at("loss"));
    return found;
  }
  // Virtual microseconds of the kernels of that name in a planned step.
  double planned(const std::string& kernel, const Words& more) const {
    const Outcome outcome =
        folder_.run(Words{"plan"} + kSteps + kLoaded + Words{"--device", "h100", "--trace", "trace.json"} + more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    double sum = 0;
    const auto trace = nlohmann::json::parse(folder_.read("trace.json"));
    for (const auto& event : trace.at("traceEvents")) {
      if (event.value("name", "") == kernel) sum += event.value("dur", 0.0);
    }
    return sum;
  }

  const ProgramFolder folder_;
};

TEST_F(PretrainCustomOp, LearnsTheSameOnAnyNumberOfRanks) {
  const auto alone = losses({});
  ASSERT_EQ(alone.size(), 12U);
  EXPECT_LT(alone.back(), alone.front() - 1);
  folder_.write("shard.yaml", "sharding_size: auto\nsub_modules_to_wrap: [\"tokens\", \"up\", \"head\"]\n");
  const auto sharded = losses({"--nproc-per-node", "2", "--use-torch-fsdp2", "--fsdp2-config-path", "shard.yaml"});
  ASSERT_EQ(sharded.size(), 12U);
  for (std::size_t i = 0; i < 12; ++i) EXPECT_NEAR(sharded[i], alone[i], 1e-4) << "step " << i;
}

TEST_F(PretrainCustomOp, IsPricedInAPlan) {
  const double forward = planned("custom.scaled_gelu", {}), backward = planned("custom.scaled_gelu_grad", {});
  EXPECT_GT(forward, 0);
  EXPECT_GT(backward, forward);  // three tensors instead of two
  EXPECT_GT(planned("custom.scaled_gelu", {"--seq-length", "4096"}), forward);
}

TEST_F(PretrainCustomOp, SaysWhichLibraryIsMissing) {
  const Outcome without = folder_.run(kSteps);
  EXPECT_NE(without.exit_code, 0);
  EXPECT_THAT(without.err,
              HasSubstr("custom operator 'scaled_gelu' is not loaded; loaded are none; give its library to "
                        "--custom-op-library"));
  folder_.write("text.so", "no library");
  const Outcome wrong = folder_.run(kSteps + Words{"--custom-op-library", "text.so"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("text.so: the file is no shared object (10 bytes)"));
}

// build.sh builds the library again only when its source changed.
TEST_F(PretrainCustomOp, HasALibraryThatIsBuiltWhenItsSourceChanges) {
  const std::string example = LOOM_SOURCE_DIR "/examples/custom_op/";
  const std::string source = read_file(example + "scaled_gelu.cpp");
  folder_.write("op.cpp", source);
  const auto built = [&] {
    const Outcome outcome = folder_.run_command({"bash", example + "build.sh", "mine", "op.cpp"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return folder_.path(outcome.out.substr(0, outcome.out.find('\n')));
  };
  const std::filesystem::path first = built();
  const auto time = std::filesystem::last_write_time(first);
  EXPECT_EQ(built(), first);
  EXPECT_EQ(std::filesystem::last_write_time(first), time);
  folder_.write("op.cpp", source + "// changed\n");
  EXPECT_NE(built(), first);
  const Outcome outcome = folder_.run(kSteps + Words{"--custom-op-library", first.string()});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

}  // namespace
}  // namespace loom::test
