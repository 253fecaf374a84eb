// Promise: a parameter held in two places stays one parameter inside a group, and is refused when it would span two.
// World:   2 ranks as threads; a head whose weight is the embedding's.
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/nn/layers.h"
#include "engine/nn/optim/adamw.h"
#include "tests/support/files.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using test::run_world;

class Tied final : public nn::Module {
 public:
  Tied()
      : embed(register_module("embed", std::make_shared<nn::Embedding>(6, 4, 0.5))),
        head(register_module("head", std::make_shared<nn::TiedLinear>(embed.weight))) {}
  std::string_view type_name() const override { return "Tied"; }
  nn::Embedding& embed;
  nn::TiedLinear& head;

 protected:
  nn::Value forward(const nn::Args& args) override { return head(embed(args.tensor(0))); }
};

Tensor ids() { return Tensor::from(std::vector<std::int32_t>{0, 5, 2, 2}, {4}); }

TEST(Ties, HoldThroughEveryTransition) {
  run_world(2, [](RankContext&, comm::World& world) {
    Tied model;
    fully_shard(model, test::sharded_over_all(world));
    ASSERT_EQ(FsdpState::of(model)->group()->params().size(), 1u);
    const auto tied = [&] { return model.embed.weight.value.is_same(model.head.weight.value); };
    EXPECT_TRUE(tied());
    materialize_shards(model);
    nn::init_weights(model, 1);
    EXPECT_EQ(model.embed.weight.shard.offset[0], model.head.weight.shard.offset[0]);
    unshard(model);
    EXPECT_TRUE(tied());
    EXPECT_EQ(model.head.weight.value.shape(), (Shape{6, 4}));
    reshard(model);
    EXPECT_TRUE(tied());
    EXPECT_EQ(model.head.weight.value.shape(), (Shape{3, 4}));
    nn::AdamW optimizer(model.parameters(), {});
    EXPECT_EQ(optimizer.parameters().size(), 1u);
    test::forward_backward(model, ids());
    optimizer.step();
    EXPECT_TRUE(tied());
  });
}

TEST(Ties, CollectTheGradientOfBothUses) {
  std::vector<double> whole;
  run_world(1, [&](RankContext&, comm::World&) {
    Tied model;
    nn::materialize(model);
    nn::init_weights(model, 1);
    test::forward_backward(model, ids());
    whole = model.embed.weight.value.grad().to_vector<double>();
  });
  run_world(2, [&](RankContext&, comm::World& world) {
    Tied model;
    fully_shard(model, test::sharded_over_all(world));
    materialize_shards(model);
    nn::init_weights(model, 1);
    test::forward_backward(model, ids());  // the same on both ranks: (g + g) / 2 = g
    EXPECT_EQ(model.embed.weight.value.grad().to_vector<double>(), test::rows_of(whole, 3 * world.rank(), 3, 4));
  });
}

TEST(Ties, AcrossTwoGroupsAreRefusedNamingBothPaths) {
  run_world(2, [](RankContext&, comm::World& world) {
    const FullyShardOptions options = test::sharded_over_all(world);
    Tied model;
    fully_shard(model.embed, options);
    EXPECT_EQ(
        test::message_of<ConfigError>([&] { fully_shard(model, options); }),
        "parameter 'head.weight' of the wrapped Tied is tied to 'weight' of the wrapped Embedding, which another group "
        "owns; a tie must stay inside one group: wrap neither module, wrap both as one group, or untie them (tie_word_embeddings: false)");
  });
}

TEST(Ties, AreForgottenWithTheModelThatHadThem) {
  run_world(1, [](RankContext&, comm::World& world) {
    const FullyShardOptions options = test::sharded_over_all(world);
    for (int i = 0; i < 50; ++i) {  // storages of dead models come again at the same address
      Tied model;
      EXPECT_NO_THROW(fully_shard(model, options)) << i;
    }
  });
}

}  // namespace
}  // namespace loom::sharding
