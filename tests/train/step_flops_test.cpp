// Promise: the FLOPs of a step are three times those of the forward's matrix products and attention, whatever else ran.
// World:   a dry device, kernels by hand.
#include "engine/train/step/step_flops.h"

#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/support/files.h"
#include "tests/support/one_rank.h"

namespace loom::train {
namespace {

using device::Unit;

class Flops : public ::testing::Test {
 protected:
  void phase(std::string_view name) { rank.device().log().add_phase(name); }
  void kernel(Unit unit, double flops) {
    rank.device().log().add_kernel(device::StreamId::kCompute, "kernel", {.flops = flops, .unit = unit});
  }

  test::OneRank rank{{.dry_run = true}};
  StepFlops flops;
};

TEST_F(Flops, AreThreeTimesTheArithmeticOfTheForwardInEveryMicroBatch) {
  kernel(Unit::kMatrix, 1e9);  // before the step
  flops.begin_step(0);
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    phase("forward");
    kernel(Unit::kMatrix, 100);
    kernel(Unit::kAttention, 10);
    kernel(Unit::kVector, 1);
    phase("backward");
    kernel(Unit::kMatrix, 100);  // recomputed
    kernel(Unit::kMatrix, 200);
  }
  phase("optimizer");
  flops.end_step(0);
  EXPECT_EQ(flops.per_step(), 3 * 2 * 110);
}

TEST_F(Flops, AreThoseOfTheFirstStepOfTheRun) {
  for (const std::int64_t step : {7, 8}) {
    flops.begin_step(step);
    phase("forward");
    kernel(Unit::kMatrix, 10.0 * static_cast<double>(step));
    flops.end_step(step);
  }
  EXPECT_EQ(flops.per_step(), 3 * 70);
}

TEST_F(Flops, ThatCannotBeToldAreAnError) {
  flops.begin_step(4);
  phase("forward");
  kernel(Unit::kVector, 5);
  EXPECT_EQ(test::message_of<Error>([&] { flops.end_step(4); }),
            "[rank 0] --log-throughput counts the FLOPs of matrix products and attention, and the forward of iteration "
            "5 has none; remove --log-throughput");
}

}  // namespace
}  // namespace loom::train
