// Promise: a child is replaced under its name and in its order, in every place where it stands, and its parent calls
//          the new one; ties hold; what would silently go wrong is refused with nothing changed.
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/nn/module.h"
#include "tests/nn/toy_modules.h"

namespace loom::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

class Scaled final : public Module {
 public:
  explicit Scaled(double factor) : factor_(factor) {}
  std::string_view type_name() const override { return "Scaled"; }

 protected:
  Value forward(const Args& args) override { return ops::scale(args.tensor(0), factor_); }

 private:
  const double factor_;
};

class Pair final : public Module {
 public:
  Pair(const std::shared_ptr<Module>& first, const std::shared_ptr<Module>& second)
      : first(register_module("first", first)), second(register_module("second", second)) {}
  std::string_view type_name() const override { return "Pair"; }
  Child<Module> first, second;

 protected:
  Value forward(const Args& args) override { return second(first(args.tensor(0))); }
};

std::vector<std::string> paths(const Module& root) {
  std::vector<std::string> found;
  for (const auto& [path, module] : root.named_modules()) found.push_back(path);
  return found;
}

TEST(ReplaceChild, KeepsNameAndOrderAndIsCalled) {
  test::OneRank rank;
  Pair pair(std::make_shared<Scaled>(2), std::make_shared<Scaled>(3));
  const Module* old = pair.find("first");
  const auto replaced = pair.replace_child("first", std::make_shared<Scaled>(10));
  EXPECT_EQ(replaced.get(), old);
  EXPECT_THAT(paths(pair), ElementsAre("", "first", "second"));
  EXPECT_EQ(pair(test::constant({1})).tensor().item(), 30);
}

TEST(ReplaceChild, TheReplacementMayHoldWhatItReplaces) {
  test::OneRank rank;
  const auto inner = std::make_shared<Scaled>(2);
  Pair pair(inner, std::make_shared<Scaled>(3));
  pair.replace_child("first", std::make_shared<Pair>(inner, std::make_shared<Scaled>(5)));
  EXPECT_EQ(pair(test::constant({1})).tensor().item(), 2 * 5 * 3);
  EXPECT_EQ(pair.find("first.first"), inner.get());
}

TEST(ReplaceChild, ReplacesASharedModuleInEveryPlace) {
  test::OneRank rank;
  const auto shared = std::make_shared<Scaled>(2);
  Pair pair(shared, shared);
  pair.replace_child("second", std::make_shared<Scaled>(10));
  EXPECT_EQ(pair(test::constant({1})).tensor().item(), 100);
}

TEST(ReplaceChild, KeepsATieInTheSlotOfTheSamePathAndShape) {
  test::OneRank rank;
  const auto embed = std::make_shared<Embedding>(5, 4, 0.1);
  Pair pair(embed, std::make_shared<TiedLinear>(embed->weight));
  const auto head = std::make_shared<Linear>(4, 5, true, 0.1);
  pair.replace_child("second", head);
  EXPECT_TRUE(head->weight.value.is_same(embed->weight.value));
  EXPECT_EQ(pair.parameters().size(), 2u);  // the shared weight and the new bias
}

TEST(ReplaceChild, RefusesToEndATie) {
  test::OneRank rank;
  const auto embed = std::make_shared<Embedding>(5, 4, 0.1);
  Pair pair(embed, std::make_shared<TiedLinear>(embed->weight));
  const Module* head = pair.find("second");
  EXPECT_THAT([&] { pair.replace_child("second", std::make_shared<Linear>(4, 6, false, 0.1)); },
              ThrowsMessage<ConfigError>(StrEq(
                  "replace_child: 'second.weight' is tied to 'first.weight', and the Linear that takes the place of "
                  "'second' has no parameter 'weight' [5, 4] to hold it; keep the replaced module in it, or untie the "
                  "two first")));
  EXPECT_EQ(pair.find("second"), head);
  // A replacement that holds the tied module holds the parameter.
  const auto kept = std::make_shared<Pair>(pair.children()[1].second, std::make_shared<Scaled>(2));
  EXPECT_NO_THROW(pair.replace_child("second", kept));
}

TEST(ReplaceChild, RefusesAPathThatIsNotThere) {
  test::OneRank rank;
  Pair pair(std::make_shared<Scaled>(2), std::make_shared<Scaled>(3));
  EXPECT_THAT([&] { pair.replace_child("frist", std::make_shared<Scaled>(1)); },
              ThrowsMessage<ConfigError>(StrEq("replace_child: Pair has no module 'frist'; did you mean 'first'?")));
  EXPECT_THROW(pair.replace_child("", std::make_shared<Scaled>(1)), ConfigError);
}

TEST(ReplaceChild, RefusesAModuleThatIsShardedOrWrapped) {
  test::OneRank rank;
  const auto linear = std::make_shared<Linear>(4, 4, false, 0.1);
  Pair pair(linear, std::make_shared<Scaled>(3));
  const auto refused = [&](const std::string& path) {
    EXPECT_THAT([&] { pair.replace_child(path, std::make_shared<Scaled>(1)); },
                ThrowsMessage<ConfigError>(StartsWith("replace_child: '" + path + "' (")));
  };
  linear->weight.holds = SlotHolds::kShard;
  refused("first");
  pair.find("second")->wrap_call([](const Module::Run& inner, Args args) { return inner(std::move(args)); });
  refused("second");
}

TEST(ReplaceChild, RefusesWhereTheParentKeepsAReference) {
  test::OneRank rank;
  Pair outer(std::make_shared<test::Mlp>(4, 8), std::make_shared<Scaled>(1));
  EXPECT_THAT([&] { outer.replace_child("first.up_proj", std::make_shared<Linear>(4, 8, false, 0.1)); },
              ThrowsMessage<ConfigError>(StrEq(
                  "replace_child: the Mlp at 'first' holds its child 'up_proj' by reference and would go on using the "
                  "old one; declare that member as nn::Child<Linear>")));
}

TEST(ReplaceChild, AParentThatNeedsTheOldClassIsTold) {
  test::OneRank rank;
  class Typed final : public Module {
   public:
    Typed() : layer(register_module("layer", std::make_shared<Linear>(4, 4, false, 0.1))) {}
    std::string_view type_name() const override { return "Typed"; }
    Child<Linear> layer;

   protected:
    Value forward(const Args&) override { return layer->weight.value; }
  };
  Typed typed;
  EXPECT_NO_THROW(typed(0));
  typed.replace_child("layer", std::make_shared<Scaled>(1));
  EXPECT_THAT([&] { *typed.layer; },
              ThrowsMessage<ConfigError>(StrEq(
                  "'layer' of a Typed is a Scaled now, and the code of its parent uses members of the class it had; "
                  "replace it by a class derived from that one")));
}

}  // namespace
}  // namespace loom::nn
