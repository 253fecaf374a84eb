// Promise: ranks that disagree get one error on every rank that names the group, the ranks and the difference; nobody
//          waits for the deadline.
// World:   2 ranks as threads; root and 2 blocks of width 4.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// What each rank ends with when `main` throws.
template <class E>
std::vector<std::string> errors(const launch::RankMain& main) {
  return test::of_each_rank(2, [&](RankContext& context, comm::World& world) -> std::string {
    try {
      main(context, world);
    } catch (const E& error) {
      return error.what();
    }
    return "no error";
  });
}

TEST(Agreement, OfShapes) {
  const auto texts = errors<ConfigError>([](RankContext& context, comm::World& world) {
    const auto chain = test::sharded_chain(context.rank() == 0 ? 4 : 6, 2, test::sharded_over_all(world));
    chain->operator()(test::toy_input(0, 3, context.rank() == 0 ? 4 : 6));
  });
  for (const std::string& text : texts) {
    EXPECT_EQ(text,
              "ranks 0,1 do not shard the same model the same way: rank 0 has 'weight' [4, 4] fp32 trained, rank 1 has "
              "'weight' "
              "[6, 6] fp32 trained; give every rank the same model, fsdp2_config.yaml and frozen parameters");
  }
}

TEST(Agreement, OfTheConfiguration) {
  const auto texts = errors<ConfigError>([](RankContext& context, comm::World& world) {
    FullyShardOptions options = test::sharded_over_all(world);
    options.reshard_after_forward = context.rank() == 0;
    const auto chain = test::sharded_chain(4, 2, options);
    chain->operator()(test::toy_input(0, 3, 4));
  });
  for (const std::string& text : texts) {
    EXPECT_THAT(text, AllOf(HasSubstr("rank 0 has group '(root)'"), HasSubstr("reshard_after_forward true"),
                            HasSubstr("rank 1 has group '(root)'"), HasSubstr("reshard_after_forward false")));
  }
}

TEST(Agreement, OfWhatIsFrozen) {
  const auto texts = errors<ConfigError>([](RankContext& context, comm::World& world) {
    const auto chain = test::sharded_chain(4, 2, test::sharded_over_all(world));
    if (context.rank() == 1) chain->block(1).weight.value.set_requires_grad(false);
    chain->operator()(test::toy_input(0, 3, 4));
  });
  for (const std::string& text : texts) {
    EXPECT_THAT(text, AllOf(HasSubstr("rank 0 has 'layers.1.weight' [4, 4] fp32 trained"),
                            HasSubstr("rank 1 has 'layers.1.weight' [4, 4] fp32 frozen")));
  }
}

// Rank 1 leaves the last block out: its next collective is another one than rank 0's.
TEST(Agreement, OfTheModulesThatRun) {
  const auto texts = errors<CommError>([](RankContext& context, comm::World& world) {
    const auto chain = test::sharded_chain(4, 2, test::sharded_over_all(world));
    if (context.rank() == 1) chain->skipped = {1};
    test::forward_backward(*chain, test::toy_input(0, 3, 4));
  });
  for (const std::string& text : texts) EXPECT_THAT(text, HasSubstr("'layers.1'"));
}

// No input of rank 1's last block reaches the loss: rank 0 reduces a group that rank 1 does not.
TEST(Agreement, OfTheGroupsThatHaveGradients) {
  const auto texts = errors<CommError>([](RankContext& context, comm::World& world) {
    const auto chain = test::sharded_chain(4, 2, test::sharded_over_all(world));
    chain->operator()(test::toy_input(0, 3, 4));  // both ranks agree at the first forward
    if (context.rank() == 1) chain->block(0).weight.value.set_requires_grad(false);
    test::forward_backward(*chain, test::toy_input(0, 3, 4));
  });
  for (const std::string& text : texts) EXPECT_THAT(text, HasSubstr("layers.0"));
}

}  // namespace
}  // namespace loom::sharding
