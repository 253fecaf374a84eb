// Promise: a loss inside the model's forward has the values of one behind it, step for step, on every rank, with the
//          same reports; the root's backward begins with it.
// World:   the tiny model on two ranks.
#include "engine/data/loss_in_model.h"

#include <gtest/gtest.h>

#include "engine/device/recorder.h"
#include "sharding/marks.h"
#include "tests/train/tiny_trainers.h"

namespace loom::train {
namespace {

class LossInModel : public TinyTrainers {
 protected:
  LossInModel() {
    callbacks.forward_step = [](data::DataIterator& data, nn::Module& model) {
      const data::Batch batch = data.next();
      nn::Args args;
      args.add(batch["ids"]);
      return data::forward_with_loss(model, std::move(args), [targets = batch["targets"]](const nn::Value& logits) {
        return data::Loss(ops::cross_entropy(logits, targets), {{"one", 1.0}});
      });
    };
  }

  struct Run {
    std::vector<double> losses;
    std::vector<std::string> gathers;  // of the last step
  };
  Run run(bool inside) {
    arguments.objective.loss_in_model = inside;
    Run found;
    on_each_rank([&](int rank, Trainer& trainer) {
      for (int i = 0; i < 3; ++i) {
        const device::Recorder recorder(device::Device::current(), {});
        const auto stats = trainer.step();
        if (rank != 0) continue;
        EXPECT_EQ(stats.reports.size(), 1U);
        found.losses.push_back(stats.loss);
        const device::Recording recording = recorder.recording();
        found.gathers.clear();
        for (const device::Mark& mark : recording.marks) {
          if (mark.kind == sharding::kGatherMark) found.gathers.push_back(recording.text(mark.subject));
        }
      }
    });
    return found;
  }
};

TEST_F(LossInModel, HasTheValuesOfALossBehindIt) {
  const Run behind = run(false), inside = run(true);
  EXPECT_EQ(behind.losses, inside.losses);
  EXPECT_EQ(behind.losses.size(), 3U);
}

// A micro-batch: forward root, embed, head; backward head and embed, or the root first, whose parameters are freed by
// then.
TEST_F(LossInModel, GathersTheRootBeforeTheBackwardOfTheLoss) {
  const Run behind = run(false), inside = run(true);
  ASSERT_GE(inside.gathers.size(), 4U);
  EXPECT_NE(behind.gathers, inside.gathers);
  EXPECT_EQ(inside.gathers[3], "");
  EXPECT_EQ(behind.gathers[3], "head");
}

}  // namespace
}  // namespace loom::train
