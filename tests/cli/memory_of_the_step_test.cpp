// Promise: --loss-chunk-size changes the memory of a step and not its loss, in a run and in a plan; every optimizer
//          trains and is planned; what they do not go with is refused with status 2.
// World:   the built program; the tiny model of the folder.
#include <gmock/gmock.h>

#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;

TEST(LossChunkSize, LeavesTheCurveAsItIs) {
  const ProgramFolder folder;
  for (const char* kernels : {"fast", "pytorch"}) {
    const Words run = kFourSteps + Words{"--nproc-per-node", "2", "--kernels", kernels};
    ASSERT_EQ(folder.run(run + Words{"--metrics-path", "whole.jsonl"}).exit_code, 0);
    const Outcome chunked = folder.run(run + Words{"--metrics-path", "chunked.jsonl", "--loss-chunk-size", "5"});
    ASSERT_EQ(chunked.exit_code, 0) << chunked.err;
    const auto expected = folder.metrics("whole.jsonl"), actual = folder.metrics("chunked.jsonl");
    ASSERT_EQ(actual.size(), 4U);
    for (std::size_t i = 0; i < actual.size(); ++i) {
      EXPECT_NEAR(actual[i].at("loss").get<double>(), expected[i].at("loss").get<double>(), 2e-6) << kernels << i;
      EXPECT_NEAR(actual[i].at("grad_norm").get<double>(), expected[i].at("grad_norm").get<double>(), 1e-5) << i;
    }
    EXPECT_NEAR(actual.back().at("held_out_loss").get<double>(), expected.back().at("held_out_loss").get<double>(),
                2e-6);
  }
}

TEST(LossChunkSize, ShowsInThePlansMemory) {
  const ProgramFolder folder;
  const Words large{"--micro-batch-size", "64"};
  const auto whole = plan_of_four(folder, large),
             chunked = plan_of_four(folder, large + Words{"--loss-chunk-size", "1"});
  EXPECT_LT(chunked.at("memory").at("peak_allocated_bytes").get<double>(),
            whole.at("memory").at("peak_allocated_bytes").get<double>());
}

TEST(LossChunkSize, RefusesAnOutputThatWouldRoundTheLoss) {
  const ProgramFolder folder;
  folder.write("bf16.yaml", "sharding_size: auto\nparam_dtype: bf16\noutput_dtype: bf16\n");
  const Outcome outcome =
      folder.run(with_value(kFourSteps, "--fsdp2-config-path", "bf16.yaml") + Words{"--loss-chunk-size", "4"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err,
              HasSubstr("bf16.yaml: output_dtype is bf16, and with --loss-chunk-size the model's output is "
                        "the loss, which would be rounded to it; remove one of them"));
}

TEST(Optimizers, TrainAndArePlanned) {
  const ProgramFolder folder;
  for (const char* optimizer : {"adam", "sgd", "muon"}) {
    const Words chosen{"--optimizer", optimizer};
    std::vector<double> losses;
    for (const char* ranks : {"1", "2"}) {
      const Outcome outcome =
          folder.run(kFourSteps + chosen + Words{"--nproc-per-node", ranks, "--metrics-path", "run.jsonl"});
      ASSERT_EQ(outcome.exit_code, 0) << optimizer << outcome.err;
      losses.push_back(folder.metrics("run.jsonl").back().at("loss").get<double>());
      std::filesystem::remove(folder.path("run.jsonl"));
    }
    EXPECT_NEAR(losses[0], losses[1], 1e-3) << optimizer;
    plan_of_four(folder, chosen);
  }
}

TEST(Optimizers, MuonRefusesOffload) {
  const ProgramFolder folder;
  folder.write("offload.yaml", "sharding_size: auto\noffload_to_cpu: true\n");
  const Outcome outcome =
      folder.run(with_value(kFourSteps, "--fsdp2-config-path", "offload.yaml") + Words{"--optimizer", "muon"});
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("its shard is in host memory (offload_to_cpu); Muon updates on the device: set "
                                     "offload_to_cpu: false, or use --optimizer adam"));
}

}  // namespace
}  // namespace loom::test
