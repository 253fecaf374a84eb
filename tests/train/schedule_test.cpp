// Promise: the trainer runs the actions that it is given, in their order; loss and gradients do not depend on whether
//          each micro-batch or only the last is reduced, up to rounding.
// World:   the tiny model on two ranks, two micro-batches a step.
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/device/recorder.h"
#include "sharding/marks.h"
#include "tests/train/tiny_trainers.h"

namespace loom::train {
namespace {

using ::testing::ElementsAre;

class PhaseWatch final : public StepObserver {
 public:
  void begin_phase(std::string_view phase) override { phases.emplace_back(phase); }
  std::vector<std::string> phases;
};

struct Ran {
  std::vector<std::string> phases;
  std::int64_t reductions = 0;  // of a step
  std::vector<double> losses, norms;
};

class TrainSchedules : public TinyTrainers {
 protected:
  Ran run(const std::vector<Action>& actions) {
    Ran ran;
    on_each_rank([&](int rank, Trainer& trainer) {
      if (!actions.empty()) trainer.set_schedule(actions);
      for (int i = 0; i < 4; ++i) {
        PhaseWatch watch;
        trainer.set_observers({&watch});
        const device::Recorder recorder(device::Device::current());
        const StepMetrics metrics = trainer.step();
        trainer.set_observers({});
        if (rank != 0) continue;
        ran.phases = watch.phases;
        ran.losses.push_back(metrics.loss);
        ran.norms.push_back(metrics.grad_norm);
        const device::Recording recording = recorder.recording();
        ran.reductions = std::ranges::count(recording.marks, sharding::kReduceScatterMark, &device::Mark::kind);
      }
    });
    return ran;
  }
};

const std::vector<Action> kReduceLast = {
    {ActionKind::kForward, 0},  {ActionKind::kReadLoss, 0}, {ActionKind::kBackward, 0}, {ActionKind::kForward, 1},
    {ActionKind::kReadLoss, 1}, {ActionKind::kBackward, 1}, {ActionKind::kReduce, 1}};

TEST_F(TrainSchedules, AreAccumulationUnlessGiven) {
  const Ran usual = run({}), given = run(accumulation(2));
  EXPECT_THAT(usual.phases, ElementsAre("forward", "backward", "forward", "backward", "optimizer", "end"));
  EXPECT_EQ(usual.phases, given.phases);
  EXPECT_EQ(usual.losses, given.losses);
  EXPECT_EQ(usual.norms, given.norms);
  EXPECT_EQ(usual.reductions, given.reductions);
}

TEST_F(TrainSchedules, MayReduceTheLastMicroBatchAlone) {
  const Ran each = run({}), last = run(kReduceLast);
  EXPECT_GT(last.reductions, 0);
  EXPECT_EQ(each.reductions, 2 * last.reductions);
  for (std::size_t i = 0; i < each.losses.size(); ++i) {
    EXPECT_NEAR(each.losses[i], last.losses[i], 1e-5);
    EXPECT_NEAR(each.norms[i], last.norms[i], 1e-5);
  }
}

TEST_F(TrainSchedules, AreRefusedWhereTheyAreIncomplete) {
  on_each_rank([](int rank, Trainer& trainer) {
    const std::string text = test::message_of<InvariantError>([&] { trainer.set_schedule(accumulation(1)); });
    EXPECT_EQ(text, fmt::format("[rank {}] internal: the schedule F0 L0 B0 R0: F1 is missing", rank));
  });
}

}  // namespace
}  // namespace loom::train
