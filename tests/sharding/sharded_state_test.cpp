// Promise: what is saved of a sharded model and its optimizer goes in again under any number of ranks and layout, and
//          training goes on bit for bit; handles follow shards that move to shared memory; boxes that were parts before
//          they were sharded keep their place in the whole.
// World:   ranks as threads; root and 2 blocks of width 5 (uneven shards).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/nn/optim/adamw.h"
#include "sharding/full_parameters.h"
#include "tests/support/boxes.h"
#include "tests/support/files.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

constexpr int kBlocks = 2;
constexpr nn::AdamWOptions kOptions{.lr = 0.05};

struct Saved {
  nn::StateDict model;
  nn::OptimizerState optimizer;
};

Saved save(nn::Module& model, const nn::Optimizer& optimizer) {
  return {nn::host_copies(local_state_dict(model)), nn::host_copies(optimizer.state_dict())};
}

void load(const Saved& saved, nn::Module& model, nn::Optimizer& optimizer) {
  load_local_state_dict(model, saved.model);
  optimizer.load_state_dict(saved.optimizer);
}

void train(nn::Module& model, nn::Optimizer& optimizer, int rank, int step) {
  test::forward_backward(model, test::toy_input(4 * step + rank, 3, test::kOddWidth));
  clip_grad_norm(model, 0.01);
  optimizer.step();
  optimizer.zero_grad();
}

std::vector<std::vector<float>> shards(const nn::Module& model) {
  std::vector<std::vector<float>> values;
  for (const Tensor& parameter : model.parameters()) values.push_back(parameter.to_vector<float>());
  return values;
}

TEST(ShardedState, TrainingGoesOnBitForBitInBothLayouts) {
  for (const GatherLayout layout : {GatherLayout::kBuffered, GatherLayout::kFast}) {
    test::run_world(2, [&](RankContext& context, comm::World& world) {
      const auto begin = [&] {
        return test::sharded_chain(test::kOddWidth, kBlocks, test::sharded_over_all(world, layout));
      };
      const auto uninterrupted = begin();
      nn::AdamW optimizer(nn::make_parameter_groups(*uninterrupted), kOptions);
      for (int step = 0; step < 4; ++step) train(*uninterrupted, optimizer, context.rank(), step);

      const auto first = begin();
      nn::AdamW before(nn::make_parameter_groups(*first), kOptions);
      for (int step = 0; step < 2; ++step) train(*first, before, context.rank(), step);
      const Saved saved = save(*first, before);

      const auto second = begin();
      nn::AdamW after(nn::make_parameter_groups(*second), kOptions);
      // Half of the layouts' work is done at the first forward: what is loaded then lies in shared memory already.
      (*second)(test::toy_input(0, 3, test::kOddWidth));
      reshard(*second);  // a root stays gathered after forward
      load(saved, *second, after);
      for (int step = 2; step < 4; ++step) train(*second, after, context.rank(), step);
      EXPECT_EQ(shards(*second), shards(*uninterrupted));
    });
  }
}

TEST(ShardedState, HandlesFollowShardsIntoSharedMemory) {
  test::run_world(2, [](RankContext& context, comm::World& world) {
    const auto chain =
        test::sharded_chain(test::kOddWidth, kBlocks, test::sharded_over_all(world, GatherLayout::kFast));
    nn::AdamW optimizer(nn::make_parameter_groups(*chain), kOptions);
    const nn::StateDict state = nn::state_dict(*chain);
    std::vector<const void*> addresses;
    for (const nn::StateEntry& entry : state) addresses.push_back(entry.local.value.raw());
    const auto before = shards(*chain);
    train(*chain, optimizer, context.rank(), 0);
    EXPECT_NE(shards(*chain), before);
    std::size_t moved = 0;
    for (std::size_t i = 0; i < state.size(); ++i) {
      moved += state[i].local.value.raw() != addresses[i] ? 1 : 0;
      EXPECT_EQ(state[i].local.value.to_vector<float>(), shards(*chain)[i]) << state[i].path;
    }
    EXPECT_EQ(moved, state.size());  // or this test shows nothing
  });
}

TEST(ShardedState, HasTheBoxOfEachRank) {
  test::run_world(3, [](RankContext& context, comm::World& world) {  // 5 rows: 2, 2, 1
    const auto chain = test::sharded_chain(test::kOddWidth, kBlocks, test::sharded_over_all(world));
    for (const nn::StateEntry& entry : nn::state_dict(*chain)) {
      EXPECT_EQ(entry.local.shard, nn::ShardSpec::rows_from({test::kOddWidth, test::kOddWidth}, 2 * context.rank()))
          << entry.path;
      EXPECT_EQ(entry.local.value.shape()[0], context.rank() == 2 ? 1 : 2);
    }
  });
}

TEST(ShardedState, OfThreeRanksIsTogetherTheStateOfOne) {
  std::vector<Saved> parts(3);
  test::run_world(3, [&](RankContext& context, comm::World& world) {
    const auto chain = test::sharded_chain(test::kOddWidth, kBlocks, test::sharded_over_all(world));
    nn::AdamW optimizer(nn::make_parameter_groups(*chain), kOptions);
    train(*chain, optimizer, 0, 0);
    parts[static_cast<std::size_t>(context.rank())] = save(*chain, optimizer);
  });
  // Put together by their boxes, then taken apart for two ranks.
  Saved whole = parts[0];
  const auto together = [](const std::vector<nn::LocalTensor>& boxes) {
    const Shape& shape = boxes.front().shard.global_shape;
    const Tensor all = Tensor::host(shape, boxes.front().value.dtype(), "whole");
    for (const nn::LocalTensor& box : boxes) {
      all.rows(box.shard.offset[0], box.value.shape()[0]).copy_from(box.value);
    }
    return nn::LocalTensor{all, nn::ShardSpec::whole(shape)};
  };
  for (std::size_t i = 0; i < whole.model.size(); ++i) {
    whole.model[i].local = together({parts[0].model[i].local, parts[1].model[i].local, parts[2].model[i].local});
  }
  for (auto& [path, state] : whole.optimizer.parameters) {
    for (const std::string name : {"exp_avg", "exp_avg_sq"}) {
      std::vector<nn::LocalTensor> boxes;
      for (Saved& part : parts) boxes.push_back(std::get<nn::LocalTensor>(part.optimizer.parameters.at(path).at(name)));
      state[name] = together(boxes);
    }
  }
  test::run_world(2, [&](RankContext&, comm::World& world) {
    const auto chain = test::sharded_chain(test::kOddWidth, kBlocks, test::sharded_over_all(world));
    nn::AdamW optimizer(nn::make_parameter_groups(*chain), kOptions);
    load(whole, *chain, optimizer);
    for (const nn::StateEntry& entry : nn::state_dict(*chain)) {
      const auto box_in = [&](const Tensor& all) {
        return test::box_of(all.to_vector<float>(), {test::kOddWidth, test::kOddWidth}, entry.local.shard.offset,
                            entry.local.value.shape());
      };
      const auto saved = std::ranges::find(whole.model, entry.path, &nn::StateEntry::path);
      EXPECT_EQ(entry.local.value.to_vector<float>(), box_in(saved->local.value)) << entry.path;
      const auto moment_of = [&](const nn::OptimizerState& state) {
        return std::get<nn::LocalTensor>(state.parameters.at(entry.path).at("exp_avg")).value;
      };
      EXPECT_EQ(moment_of(optimizer.state_dict()).to_vector<float>(), box_in(moment_of(whole.optimizer)));
    }
  });
}

TEST(ShardedState, GatheredParametersAreRefusedUntilResharded) {
  test::run_world(2, [](RankContext&, comm::World& world) {
    const auto chain = test::sharded_chain(test::kOddWidth, kBlocks, test::sharded_over_all(world));
    unshard(*chain);
    EXPECT_THROW(nn::state_dict(*chain), ConfigError);
    EXPECT_THROW(nn::make_parameter_groups(*chain), ConfigError);
    EXPECT_EQ(local_state_dict(*chain).size(), 3u);
    EXPECT_NO_THROW(nn::make_parameter_groups(*chain));
  });
}

TEST(ShardedState, AShardedChildIsNotReplaced) {
  test::run_world(2, [](RankContext&, comm::World& world) {
    const auto chain = test::sharded_chain(test::kOddWidth, kBlocks, test::sharded_over_all(world));
    EXPECT_THROW(chain->replace_child("layers.1", std::make_shared<test::ToyBlock>(test::kOddWidth)), ConfigError);
  });
}

// Columns [2, 4) of a block's weight, as an axis that cuts columns leaves them, sharded over 2 ranks: a box of two
// dims.
TEST(ShardedState, AColumnSliceThatIsShardedIsABoxOfTheWhole) {
  test::run_world(2, [](RankContext& context, comm::World& world) {
    const auto whole = test::whole_chain(test::kOddWidth, 1);
    test::ToyChain part(test::kOddWidth, 1);
    part.block(0).weight.shard.offset = {0, 2};
    part.block(0).weight.value = Tensor::meta({test::kOddWidth, 2}, DType::kF32, "columns");
    part.block(0).weight.value.set_requires_grad(true);
    test::wrap_chain(part, test::sharded_over_all(world));
    materialize_shards(part);
    nn::init_weights(part, test::kToySeed);
    const std::int64_t first = 3 * context.rank(), rows = context.rank() == 0 ? 3 : 2;
    const auto all = whole->block(0).weight.value.to_vector<float>();
    const auto expect_box = [&] {
      const nn::ParamSlot& slot = part.block(0).weight;
      EXPECT_EQ(slot.shard, (nn::ShardSpec{{test::kOddWidth, test::kOddWidth}, {first, 2}}));
      EXPECT_EQ(slot.value.to_vector<float>(),
                test::box_of(all, {test::kOddWidth, test::kOddWidth}, {first, 2}, {rows, 2}));
    };
    expect_box();
    part.block(0).weight.value.fill(0);
    load_full_parameters(part, [&](const std::string& path) {
      return path == "weight" ? whole->weight.value : whole->block(0).weight.value;
    });
    expect_box();
    EXPECT_EQ(
        test::message_of<ConfigError>([&] { for_each_full_parameter(part, [](const auto&, const Tensor&) {}); }),
        "for_each_full_parameter: the ranks that share 'layers.0.weight' have [5, 2] of [5, 5] together; save its "
        "boxes (local_state_dict) instead of the whole");
  });
}

}  // namespace
}  // namespace loom::sharding
