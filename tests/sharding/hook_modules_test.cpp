// Promise: groups inside a hook module gather when its forward begins and reshard when it ends, and pregather gathers
//          all groups before a step; loss and gradients are bit for bit those of groups with their own hooks.
// World:   2 ranks as threads (4 where the mesh has replicas); a root over two chains c0 and c1, each with its own
//          weight and two blocks, of width 4; what no group takes is the root's, R. A gather issued, w waited for and
//          usable, f freed, S reduction issued.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/device/recorder.h"
#include "sharding/parallelize.h"
#include "tests/support/files.h"
#include "tests/support/issued.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using test::message_of;
using test::run_world;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Chains final : public nn::Module {
 public:
  Chains()
      : first(register_module("c0", std::make_shared<test::ToyChain>(test::kEvenWidth, 2))),
        second(register_module("c1", std::make_shared<test::ToyChain>(test::kEvenWidth, 2))) {}
  std::string_view type_name() const override { return "Chains"; }
  test::ToyChain& first;
  test::ToyChain& second;

 protected:
  nn::Value forward(const nn::Args& args) override { return second(first(args.tensor(0))); }
};

constexpr const char* kBlocks = "sharding_size: auto\nsub_modules_to_wrap: [ToyBlock]\n";
constexpr const char* kChains = "sharding_size: auto\nsub_modules_to_wrap: [ToyBlock, ToyChain]\n";

ResolvedFsdp2Config resolved_of(nn::Module& model, const std::string& text, int ranks = 2,
                                GatherLayout layout = GatherLayout::kBuffered) {
  return resolve_fsdp2(model, parse_fsdp2_config(text, "f.yaml"), ranks, layout);
}

std::shared_ptr<Chains> sharded(const std::string& text, comm::World& world,
                                GatherLayout layout = GatherLayout::kBuffered) {
  auto model = std::make_shared<Chains>();
  parallelize(*model, resolved_of(*model, text, world.size(), layout), world);
  materialize_shards(*model);
  nn::init_weights(*model, test::kToySeed);
  return model;
}

// "c0.layers.1" -> "c0.1".
std::string events(const device::Recording& recording) {
  static const std::map<std::string, std::string> kLetters{{"AG", "A"}, {"W", "w"}, {"RE", "f"}, {"RS", "S"}};
  std::string text;
  for (const test::Issued& entry : test::issued(recording)) {
    const auto letter = kLetters.find(entry.name);
    if (!entry.is_mark() || letter == kLetters.end()) continue;
    std::string group = entry.subject.empty() ? "R" : entry.subject;
    if (const auto at = group.find("layers."); at != std::string::npos) group.erase(at, 7);
    text += fmt::format("{}{} ", letter->second, group);
  }
  return text;
}

std::vector<std::string> hooks_in(const ResolvedFsdp2Config& resolved) {
  std::vector<std::string> texts;
  for (const WrappedGroup& group : resolved.groups) {
    texts.push_back(fmt::format("{} at {}", group.paths.front(), group.hook_module));
  }
  return texts;
}

TEST(HookModules, GatherTheirGroupsWhenTheyBeginAndReshardThemWhenTheyEnd) {
  run_world(2, [](RankContext& context, comm::World& world) {
    const auto model = sharded(std::string(kBlocks) + "hook_modules: [c1]\n", world);
    device::Recorder recorder(device::Device::current());
    const Tensor loss = ops::mean(model->operator()(test::toy_input(context.rank(), 3, test::kEvenWidth)).tensor());
    EXPECT_EQ(events(recorder.recording()),
              "AR wR Ac0.0 wc0.0 fc0.0 Ac0.1 wc0.1 fc0.1 Ac1.1 wc1.1 Ac1.0 wc1.0 fc1.0 fc1.1 fR ");
    recorder.clear();
    autograd::backward(loss);
    EXPECT_EQ(events(recorder.recording()),
              "Ac1.0 wc1.0 Ac0.1 Ac1.1 wc1.1 AR wR fc1.0 Sc1.0 fc1.1 Sc1.1 wc0.1 Ac0.0 fc0.1 Sc0.1 wc0.0 fc0.0 Sc0.0 "
              "fR SR ");
  });
}

TEST(HookModules, GiveTheLossAndGradientsOfHooksOfTheirOwn) {
  for (const std::string keys :
       {"hook_modules: [c0, c1]\n", "hook_modules: [c0]\nnum_to_forward_prefetch: 1\nnum_to_backward_prefetch: 1\n",
        "hook_modules: [c1]\nreshard_after_forward: false\n", "hook_modules: [c0, c1]\nparam_dtype: bf16\n",
        "hook_modules: [c0, c1]\noffload_to_cpu: true\n", "pregather: true\n"}) {
    const std::string plain = keys.find("bf16") != std::string::npos ? "param_dtype: bf16\n" : "";
    for (const GatherLayout layout : {GatherLayout::kBuffered, GatherLayout::kFast}) {
      run_world(2, [&](RankContext& context, comm::World& world) {
        const auto hooked = sharded(kChains + keys, world, layout);
        const auto own = sharded(kChains + plain, world, layout);
        const Tensor input = test::toy_input(context.rank(), 3, test::kEvenWidth);
        for (int step = 0; step < 2; ++step) {
          if (keys.starts_with("pregather")) pregather(*hooked);
          EXPECT_EQ(test::forward_backward(*hooked, input), test::forward_backward(*own, input)) << keys;
        }
        EXPECT_EQ(test::gradients(*hooked), test::gradients(*own)) << keys;
      });
    }
  }
}

TEST(HookModules, WorkOnAMeshWithReplicas) {
  run_world(4, [](RankContext& context, comm::World& world) {
    const std::string mesh = "sharding_size: 2\nsub_modules_to_wrap: [ToyBlock, ToyChain]\n";
    const auto hooked = sharded(mesh + "hook_modules: [ToyChain]\n", world);
    const auto own = sharded(mesh, world);
    const Tensor input = test::toy_input(context.rank(), 3, test::kEvenWidth);
    pregather(*hooked);
    EXPECT_EQ(test::forward_backward(*hooked, input), test::forward_backward(*own, input));
    EXPECT_EQ(test::gradients(*hooked), test::gradients(*own));
  });
}

TEST(HookModules, TheInnermostThatHoldsAllModulesOfAGroupCounts) {
  Chains model;
  EXPECT_THAT(hooks_in(resolved_of(model,
                                   "sub_modules_to_wrap: [c0.layers.0, [c0.layers.1, c1.layers.0], c1]\n"
                                   "hook_modules: [c0, c0.layers.0, c1]\n")),
              ElementsAre("c0.layers.0 at ", "c0.layers.1 at ", "c1 at "));
  EXPECT_THAT(hooks_in(resolved_of(model,
                                   "sub_modules_to_wrap: [c0.layers.0, [c1.layers.0, c1.layers.1]]\n"
                                   "hook_modules: [ToyChain]\n")),
              ElementsAre("c0.layers.0 at c0", "c1.layers.0 at c1"));
}

TEST(HookModules, AreOneEntryOfThePrefetchLists) {
  run_world(2, [](RankContext&, comm::World& world) {
    const auto model = sharded(std::string(kChains) +
                                   "hook_modules: [ToyChain]\nnum_to_forward_prefetch: 1\n"
                                   "num_to_backward_prefetch: 1\n",
                               world);
    const auto state = [](nn::Module& module) { return FsdpState::of(module); };
    const auto all = [&](test::ToyChain& chain) {
      return ElementsAre(state(chain), state(chain.layers[0]), state(chain.layers[1]));
    };
    // The innermost hook of a forward runs last, and the outermost of a backward.
    EXPECT_THAT(state(model->first.layers[0])->forward_prefetch(), all(model->second));
    EXPECT_THAT(state(model->first)->forward_prefetch(), IsEmpty());
    EXPECT_THAT(state(model->second)->backward_prefetch(), all(model->first));
    EXPECT_THAT(state(model->second.layers[0])->backward_prefetch(), IsEmpty());
  });
}

TEST(HookModules, MustHoldTheModulesThatAreWrapped) {
  run_world(1, [](RankContext&, comm::World& world) {
    Chains model;
    FullyShardOptions options = test::sharded_over_all(world);
    options.hook_module = &model.second;
    EXPECT_EQ(message_of<ConfigError>([&] { fully_shard(model.first.layers[0], options); }),
              "fully_shard of a ToyBlock: hook_module is a ToyChain that does not hold it; give a module around it, or "
              "none");
  });
}

TEST(Pregather, GathersEveryGroupOnceBeforeTheStep) {
  run_world(2, [](RankContext& context, comm::World& world) {
    const auto model = sharded(kChains, world);
    for (int step = 0; step < 2; ++step) {
      device::Recorder recorder(device::Device::current());
      pregather(*model);
      EXPECT_EQ(events(recorder.recording()), "Ac0 wc0 Ac0.0 wc0.0 Ac0.1 wc0.1 Ac1 wc1 Ac1.0 wc1.0 Ac1.1 wc1.1 ");
      recorder.clear();
      const Tensor loss = ops::mean(model->operator()(test::toy_input(context.rank(), 3, test::kEvenWidth)).tensor());
      EXPECT_EQ(events(recorder.recording()), "fc0.0 fc0.1 fc0 fc1.0 fc1.1 fc1 ");
      autograd::backward(loss);
    }
  });
}

TEST(Pregather, OfAModuleThatIsNotWrappedIsRefused) {
  Chains model;
  EXPECT_EQ(message_of<ConfigError>([&] { pregather(model); }),
            "a Chains is not wrapped by fully_shard; call fully_shard() on it first");
}

}  // namespace
}  // namespace loom::sharding
