// Promise: --log-params-norm is the norm of all parameters after the update, each once, the same on every rank.
// World:   2 ranks as threads; the model is sharded, or replicated.
#include "engine/train/params_norm.h"

#include <cmath>
#include <gmock/gmock.h>

#include "sharding/full_parameters.h"
#include "tests/train/tiny_trainers.h"

namespace loom::train {
namespace {

// Of the whole parameters, in the order of the model. Collective.
double expected(nn::Module& module) {
  double sum = 0;
  sharding::for_each_full_parameter(module, [&](const std::string&, const Tensor& full) {
    for (const float x : full.to_vector<float>()) sum += static_cast<double>(x) * static_cast<double>(x);
  });
  return std::sqrt(sum);
}

using ParamsNormOfARun = TinyTrainers;

TEST_F(ParamsNormOfARun, IsThatOfTheUpdatedParametersOnEveryRank) {
  std::vector<double> norms(kRanks);
  on_each_rank([&](int rank, Trainer& trainer) {
    ParamsNorm norm(trainer.sharded_module(), true);
    trainer.set_observers({&norm});
    for (int step = 0; step < 3; ++step) {
      const double before = norm.after_step();
      trainer.step();
      EXPECT_NE(norm.after_step(), before);
      EXPECT_NEAR(norm.after_step(), expected(trainer.sharded_module()), 1e-12);
    }
    norms[static_cast<std::size_t>(rank)] = norm.after_step();
  });
  EXPECT_EQ(norms[0], norms[1]);
}

TEST_F(ParamsNormOfARun, OfAReplicatedModelCountsEachParameterOnce) {
  arguments.parallel.fsdp2_config_path =
      test::write_file(test::fresh_folder() / "replicated.yaml", "sharding_size: 1\nsub_modules_to_wrap: [embed]\n");
  on_each_rank([&](int, Trainer& trainer) {
    ParamsNorm norm(trainer.sharded_module(), true);
    trainer.set_observers({&norm});
    trainer.step();
    EXPECT_NEAR(norm.after_step(), expected(trainer.sharded_module()), 1e-12);
  });
}

}  // namespace
}  // namespace loom::train
