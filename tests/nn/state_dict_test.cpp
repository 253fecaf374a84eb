// Promise: a state dict names every parameter once, with its ties and its box, and persistent buffers; what was saved
//          loads again, from whole parameters into boxes too; what does not fit is refused before anything is written.
#include "engine/nn/state_dict.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/nn/init.h"
#include "tests/nn/toy_modules.h"
#include "tests/support/boxes.h"

namespace loom::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

// A layer with a running mean, which is saved, and a mask, which is not.
class Counted final : public Module {
 public:
  Counted() : layer(register_module("layer", std::make_shared<Linear>(4, 6, false, 0.5))) {
    register_buffer("mean", Tensor::full({3}, DType::kF32, 2), /*persistent=*/true);
    register_buffer("mask", Tensor::full({3}, DType::kF32, 1));
  }
  std::string_view type_name() const override { return "Counted"; }
  Child<Linear> layer;

 protected:
  Value forward(const Args& args) override { return layer(args.tensor(0)); }
};

void fill(Module& module, std::uint64_t seed) {
  materialize(module);
  init_weights(module, seed);
}

std::vector<std::string> paths(const StateDict& state) {
  std::vector<std::string> found;
  for (const StateEntry& entry : state) found.push_back(entry.path);
  return found;
}

TEST(StateDict, NamesEachParameterOnceWithItsTies) {
  test::OneRank rank;
  const test::ToyModel model(11, 8, 2, 0);
  const StateDict state = state_dict(model);
  EXPECT_THAT(paths(state), ElementsAre("embed_tokens.weight", "norm.weight"));
  EXPECT_THAT(state[0].tied_paths, ElementsAre("lm_head.weight"));
  EXPECT_EQ(state[0].local.shard, ShardSpec::whole({11, 8}));
  EXPECT_TRUE(state[1].tied_paths.empty());
}

TEST(StateDict, HoldsPersistentBuffersOnly) {
  test::OneRank rank;
  Counted model;
  const StateDict state = state_dict(model);
  EXPECT_THAT(paths(state), ElementsAre("layer.weight", "mean"));
  EXPECT_EQ(state[1].kind, StateEntry::Kind::kBuffer);
  EXPECT_EQ(state[1].local.shard, ShardSpec::whole({3}));
}

TEST(StateDict, IsTheModulesOwnTensorsAndCopiesStay) {
  test::OneRank rank;
  Counted model;
  fill(model, 3);
  const StateDict own = state_dict(model), copies = host_copies(own);
  model.layer->weight.value.fill(9);
  EXPECT_EQ(own[0].local.value.to_vector<float>()[0], 9);
  EXPECT_NE(copies[0].local.value.to_vector<float>()[0], 9);
}

TEST(StateDict, LoadsBitForBit) {
  test::OneRank rank;
  Counted saved, loaded;
  fill(saved, 3);
  fill(loaded, 4);
  saved.own_buffers()[0].value.fill(7);
  load_state_dict(loaded, host_copies(state_dict(saved)));
  EXPECT_EQ(loaded.layer->weight.value.to_vector<float>(), saved.layer->weight.value.to_vector<float>());
  EXPECT_THAT(loaded.own_buffers()[0].value.to_vector<float>(), ElementsAre(7, 7, 7));
  EXPECT_THAT(loaded.own_buffers()[1].value.to_vector<float>(), ElementsAre(1, 1, 1));
}

TEST(StateDict, OfTheWholeLoadsIntoABox) {
  test::OneRank rank;
  Counted saved, part;
  fill(saved, 3);
  test::give_box(part.layer->weight, {2, 1}, {3, 2});
  load_state_dict(part, state_dict(saved));
  EXPECT_EQ(part.layer->weight.value.to_vector<float>(),
            test::box_of(saved.layer->weight.value.to_vector<float>(), {6, 4}, {2, 1}, {3, 2}));
}

TEST(StateDict, IsFoundUnderAnyPathOfATie) {
  test::OneRank rank;
  test::ToyModel saved(11, 8, 2, 0), loaded(11, 8, 2, 0);
  fill(saved, 3);
  fill(loaded, 4);
  StateDict state = state_dict(saved);
  state[0].path = "lm_head.weight";
  state[0].tied_paths.clear();
  load_state_dict(loaded, state);
  EXPECT_EQ(loaded.parameters()[0].to_vector<float>(), saved.parameters()[0].to_vector<float>());
}

TEST(StateDict, RefusesWhatDoesNotFitAndWritesNothing) {
  test::OneRank rank;
  Counted model;
  fill(model, 3);
  const auto before = model.layer->weight.value.to_vector<float>();
  const StateDict good = host_copies(state_dict(model));
  good[0].local.value.fill(5);
  const auto refusal = [&](const std::function<void(StateDict&)>& spoil) {
    StateDict state = good;
    spoil(state);
    try {
      load_state_dict(model, state);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("taken");
  };
  EXPECT_EQ(refusal([](StateDict& state) { state.pop_back(); }), "load_state_dict: 'mean' [3] is missing");
  EXPECT_EQ(refusal([](StateDict& state) { state[0].path = "layer.weights"; }),
            "load_state_dict: Counted has no 'layer.weights'; the nearest is 'layer.weight'");
  EXPECT_EQ(refusal([](StateDict& state) {
              state[1].local = {Tensor::zeros({4}, DType::kF32), ShardSpec::whole({4})};
            }),
            "load_state_dict: 'mean' is [3], and [4] was given for it");
  EXPECT_EQ(refusal([](StateDict& state) {
              state[0].local = {Tensor::zeros({3, 4}, DType::kF32), ShardSpec::rows_from({6, 4}, 3)};
            }),
            "load_state_dict: this rank has [6, 4] at (0, 0) of 'layer.weight', and [3, 4] at (3, 0) was given; give a "
            "box that contains it, or the whole");
  EXPECT_EQ(model.layer->weight.value.to_vector<float>(), before);
  Counted meta;
  EXPECT_THAT([&] { load_state_dict(meta, good); },
              ThrowsMessage<ConfigError>(
                  StrEq("load_state_dict: 'layer.weight' has no bytes to load into; materialize the model first")));
}

TEST(StateDict, RefusesGatheredParameters) {
  test::OneRank rank;
  Counted model;
  model.layer->weight.holds = SlotHolds::kGathered;
  EXPECT_THAT(
      [&] { state_dict(model); },
      ThrowsMessage<ConfigError>(StrEq(
          "state_dict: parameter 'layer.weight' is gathered now, and what its slot holds is a copy; reshard first "
          "(sharding::local_state_dict does)")));
}

}  // namespace
}  // namespace loom::nn
