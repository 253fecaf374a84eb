// Promise: --log-num-zeros-in-grad counts the zeros of all gradients, --log-norms-by-layer has the norms of gradients
//          before clipping and of parameters after the update by layer, --log-tps the tokens per sample; the same on
//          every rank, and their squares sum up to those of the whole model.
// World:   2 ranks as threads; the model is sharded.
#include "engine/train/step_figures.h"

#include <cmath>
#include <gmock/gmock.h>

#include "engine/train/params_norm.h"
#include "tests/train/tiny_trainers.h"

namespace loom::train {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(LayerOf, IsThePathUpToTheFirstNumberOrTheModule) {
  EXPECT_EQ(layer_of("model.layers.3.self_attn.q_proj.weight"), "model.layers.3");
  EXPECT_EQ(layer_of("model.layers.12.mlp.experts.4.up_proj.weight"), "model.layers.12");
  EXPECT_EQ(layer_of("model.embed_tokens.weight"), "model.embed_tokens");
  EXPECT_EQ(layer_of("h2o.weight"), "h2o");
  EXPECT_EQ(layer_of("weight"), "weight");
}

using FiguresOfARun = TinyTrainers;

TEST_F(FiguresOfARun, HaveTheNormsOfEachLayer) {
  arguments.optimizer.clip_grad = 0.01;
  std::vector<std::vector<LayerNorms>> norms(kRanks);
  on_each_rank([&](int rank, Trainer& trainer) {
    NormsByLayer layers(trainer.sharded_module(), [] { return 1.0; });
    ParamsNorm all(trainer.sharded_module(), true);
    trainer.set_observers({&layers, &all});
    for (int step = 0; step < 2; ++step) {
      const StepMetrics metrics = trainer.step();
      double grads = 0, params = 0;
      for (const LayerNorms& layer : layers.of_step()) {
        grads += layer.grad * layer.grad;
        params += layer.params * layer.params;
      }
      EXPECT_NEAR(std::sqrt(grads), metrics.grad_norm, 1e-12);
      EXPECT_NEAR(std::sqrt(params), all.after_step(), 1e-12);
    }
    norms[static_cast<std::size_t>(rank)] = layers.of_step();
  });
  ASSERT_EQ(norms[0].size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(norms[0][i].layer, (std::vector<std::string>{"embed", "norm", "head"})[i]);
    EXPECT_EQ(norms[0][i].grad, norms[1][i].grad);
    EXPECT_EQ(norms[0][i].params, norms[1][i].params);
  }
}

TEST_F(FiguresOfARun, DivideTheGradientsByTheLossScale) {
  on_each_rank([&](int, Trainer& trainer) {
    NormsByLayer layers(trainer.sharded_module(), [] { return 4.0; });
    trainer.set_observers({&layers});
    const StepMetrics metrics = trainer.step();
    double grads = 0;
    for (const LayerNorms& layer : layers.of_step()) grads += layer.grad * layer.grad;
    EXPECT_NEAR(4 * std::sqrt(grads), metrics.grad_norm, 1e-12);
    EXPECT_EQ(trainer.loss_scale(), 1.0);
  });
}

// Tokens 2, 3, 5, 6 and 7 are no square modulo 8: their rows of the embedding, 4 wide, get no gradient.
TEST_F(FiguresOfARun, CountTheZerosOfAllGradients) {
  on_each_rank([&](int, Trainer& trainer) {
    ZerosInGrad zeros(trainer.sharded_module());
    trainer.set_observers({&zeros});
    trainer.step();
    EXPECT_EQ(zeros.of_step(), 5 * 4);
  });
}

TEST_F(FiguresOfARun, HaveTheTokensPerSample) {
  arguments.log.log_tps = true;
  arguments.data.seq_length = 12;  // the batches have no input_ids
  on_each_rank([&](int, Trainer& trainer) {
    EXPECT_THAT(trainer.step().reports, ElementsAre(Pair("tokens per sample", 12.0)));
  });
}

}  // namespace
}  // namespace loom::train
