// Promise: the group table ends with the parameters that are left to the root.
// World:   1 rank; Toy{embed, layers[2]{up, down}, norm, head}: 3 + 2 * 4 + 1 = 12 parameters.
#include <gmock/gmock.h>

#include "engine/launch/run_ranks.h"
#include "sharding/parallelize.h"
#include "tests/support/schedule_models.h"

namespace loom::sharding {
namespace {

std::string last_line(nn::Module& model, const std::string& yaml) {
  std::string text;
  launch::run_ranks(1, {std::chrono::minutes(1)}, [&](RankContext& context, comm::World& world) {
    device::Device::install(context, {});
    const Fsdp2Config config = parse_fsdp2_config("sharding_size: auto\n" + yaml, "f.yaml");
    parallelize(model, resolve_fsdp2(model, config, 1, GatherLayout::kBuffered), world);
    text = describe_groups(model);
  });
  text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

TEST(RootOwns, WhatNoWrappedModuleTook) {
  test::Toy toy(2, false);
  EXPECT_EQ(last_line(toy, "sub_modules_to_wrap: ['embed', 'layers.{*}', 'head']"),
            "(root) owns norm.weight, norm.bias");
}

TEST(RootOwns, TheFirstFourByName) {
  test::Toy toy(2, false);
  EXPECT_EQ(last_line(toy, ""),
            "(root) owns embed.weight, layers.0.up.weight, layers.0.up.bias, layers.0.down.weight and 8 more");
}

TEST(RootOwns, NothingWhereEverythingIsWrapped) {
  test::Toy toy(2, false);
  EXPECT_EQ(last_line(toy, "sub_modules_to_wrap: ['embed', 'layers.{*}', 'norm', 'head']"),
            "(root) owns no parameters");
}

}  // namespace
}  // namespace loom::sharding
