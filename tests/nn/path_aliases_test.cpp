// Promise: a module is found under the other names its model declares, a module that really has the path comes first,
//          and every other name of a path is known.
#include "engine/nn/path_aliases.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/nn/layers.h"

namespace loom::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Box final : public Module {
 public:
  std::string_view type_name() const override { return "Box"; }
  void put(std::string name, std::shared_ptr<Module> module) { register_module(std::move(name), std::move(module)); }

 protected:
  Value forward(const Args&) override { return {}; }
};

// tower.layers.{0, 1}, head, and a module that is really called "text".
std::shared_ptr<Box> model() {
  const auto root = std::make_shared<Box>(), tower = std::make_shared<Box>(), text = std::make_shared<Box>();
  const auto layers = std::make_shared<ModuleList>();
  for (int i = 0; i < 2; ++i) layers->append(std::make_shared<Box>());
  tower->put("layers", layers);
  root->put("tower", tower);
  root->put("head", std::make_shared<Linear>(2, 2, false, 1.0));
  root->put("text", text);
  return root;
}

TEST(PathAliases, StandForAPathAndEverythingBelowIt) {
  const auto root = model();
  declare_path_aliases(*root, {{"decoder.blocks", "tower.layers"}});
  EXPECT_EQ(resolve_path(*root, "decoder.blocks"), "tower.layers");
  EXPECT_EQ(resolve_path(*root, "decoder.blocks.1"), "tower.layers.1");
  EXPECT_EQ(resolve_path(*root, "decoder.blocks.2"), std::nullopt);
  EXPECT_EQ(resolve_path(*root, "decoder"), std::nullopt);
  EXPECT_EQ(resolve_path(*root, "decoder.blocks1"), std::nullopt);  // names, not letters
}

TEST(PathAliases, OfThoseThatFitTheLongestThatLeadsToAModuleCounts) {
  const auto root = model();
  declare_path_aliases(*root, {{"decoder", "tower"}, {"decoder.out", "head"}, {"decoder.layers", "text"}});
  EXPECT_EQ(resolve_path(*root, "decoder.out"), "head");
  EXPECT_EQ(resolve_path(*root, "decoder.layers"), "text");
  EXPECT_EQ(resolve_path(*root, "decoder.layers.0"), "tower.layers.0");  // text.0 does not exist
}

TEST(PathAliases, ComeAfterAModuleThatReallyHasThePath) {
  const auto root = model();
  declare_path_aliases(*root, {{"text", "tower"}});
  EXPECT_EQ(resolve_path(*root, "text"), "text");
  EXPECT_EQ(resolve_path(*root, "text.layers"), "tower.layers");
}

TEST(PathAliases, GiveEveryOtherNameOfAPath) {
  const auto root = model();
  declare_path_aliases(*root, {{"decoder", "tower"}, {"decoder.blocks", "tower.layers"}, {"out", "head"}});
  EXPECT_THAT(other_names(*root, "tower.layers.0.weight"),
              ElementsAre("decoder.blocks.0.weight", "decoder.layers.0.weight"));
  EXPECT_THAT(other_names(*root, "head.weight"), ElementsAre("out.weight"));
  EXPECT_THAT(other_names(*root, "text.weight"), IsEmpty());
}

TEST(PathAliases, OfAModelWithoutATableAreNone) {
  const auto root = model();
  EXPECT_THAT(path_aliases(*root), IsEmpty());
  EXPECT_EQ(resolve_path(*root, "tower.layers.1"), "tower.layers.1");
  EXPECT_EQ(resolve_path(*root, ""), "");
}

TEST(PathAliases, DeclaredTwiceAreAnError) {
  const auto root = model();
  EXPECT_THROW(declare_path_aliases(*root, {{"a", "tower"}, {"a", "head"}}), InvariantError);
  EXPECT_THROW(declare_path_aliases(*root, {{"", "tower"}}), InvariantError);
}

}  // namespace
}  // namespace loom::nn
