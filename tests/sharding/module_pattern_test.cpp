// Promise: an entry of sub_modules_to_wrap selects exactly the modules its grammar says, and an entry that is wrong or
//          selects nothing is an error that says where it stands and what to write.
// World:   a decoder of 4 layers (layers 2 and 3 have experts), an empty list of adapters, and a tower of 45 blocks.
#include "sharding/config/module_pattern.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <map>

#include "engine/core/error.h"

namespace loom::sharding {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const SourceMark kMark{"f.yaml", 4, 5};

class FakeTree : public ModuleTreeView {
 public:
  FakeTree() {
    for (const char* path : {"model", "model.embed_tokens", "model.norm", "lm_head", "single_mlp"})
      paths_.push_back(path);
    container("model.layers", 4, {"", ".self_attn", ".mlp"});
    for (int i : {2, 3}) paths_.push_back(fmt::format("model.layers.{}.mlp.experts", i));
    container("model.adapters", 0, {});
    container("tower.blocks", 45, {""});
    container("heads", 1, {""});
  }

  bool exists(std::string_view path) const override { return std::ranges::find(paths_, path) != paths_.end(); }
  std::optional<int> container_size(std::string_view path) const override {
    const auto found = sizes_.find(path);
    return found == sizes_.end() ? std::nullopt : std::optional(found->second);
  }
  std::vector<std::string> known_paths() const override { return paths_; }
  std::vector<std::string> known_classes() const override { return {"Embedding", "Linear", "Qwen2DecoderLayer"}; }

 private:
  void container(const std::string& path, int size, const std::vector<std::string>& parts) {
    paths_.push_back(path);
    sizes_[path] = size;
    for (int i = 0; i < size; ++i) {
      for (const std::string& part : parts) paths_.push_back(fmt::format("{}.{}{}", path, i, part));
    }
  }

  std::vector<std::string> paths_;
  std::map<std::string, int, std::less<>> sizes_;
};

ModulePattern pattern(std::string_view text) { return ModulePattern::parse(text, "sub_modules_to_wrap", kMark); }

ModuleExpansion expanded(const std::vector<std::string>& texts) {
  std::vector<ModulePattern> patterns;
  for (const std::string& text : texts) patterns.push_back(pattern(text));
  return expand(patterns, FakeTree());
}

std::string refusal(const std::vector<std::string>& texts) {
  try {
    expanded(texts);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ModulePattern, APlainPathIsItself) {
  EXPECT_THAT(expanded({"model.embed_tokens"}).paths, ElementsAre("model.embed_tokens"));
  EXPECT_THAT(expanded({"lm_head"}).paths, ElementsAre("lm_head"));
}

TEST(ModulePattern, AStarIsEveryEntryOfTheContainer) {
  EXPECT_THAT(expanded({"model.layers.{*}"}).paths,
              ElementsAre("model.layers.0", "model.layers.1", "model.layers.2", "model.layers.3"));
}

TEST(ModulePattern, TheDotsBesideTheBracesMayBeLeftOut) {
  EXPECT_EQ(expanded({"model.layers{*}mlp"}).paths, expanded({"model.layers.{*}.mlp"}).paths);
}

TEST(ModulePattern, ATailFollowsEveryIndex) {
  EXPECT_THAT(expanded({"model.layers.{2-3}.mlp.experts"}).paths,
              ElementsAre("model.layers.2.mlp.experts", "model.layers.3.mlp.experts"));
}

// 0..20 are 21 indices, 22..40 are 19: 40 modules, 21 is left out.
TEST(ModulePattern, TwoRangesSelectTheirUnion) {
  const ModulePattern two = pattern("tower.blocks.{0-20,22-40}");
  EXPECT_THAT(two.ranges(), ElementsAre(ModulePattern::Range{0, 20}, ModulePattern::Range{22, 40}));
  EXPECT_EQ(two.index_count(), 40);
  const ModuleExpansion expansion = expand(two, FakeTree());
  EXPECT_EQ(expansion.paths.size(), 40u);
  EXPECT_THAT(expansion.paths, ::testing::Not(::testing::Contains("tower.blocks.21")));
  EXPECT_THAT(expansion.warnings, IsEmpty());
}

TEST(ModulePattern, IndicesAreASetInAscendingOrder) {
  EXPECT_THAT(expanded({"model.layers.{3,1,1}"}).paths, ElementsAre("model.layers.1", "model.layers.3"));
  EXPECT_THAT(expanded({"model.layers.{2-3, 0 - 2}"}).paths,
              ElementsAre("model.layers.0", "model.layers.1", "model.layers.2", "model.layers.3"));
}

TEST(ModulePattern, RangesThatOverlapOrTouchAreOne) {
  EXPECT_THAT(pattern("a.{4-6,1-3,5}").ranges(), ElementsAre(ModulePattern::Range{1, 6}));
}

TEST(ModulePattern, ADescendingRangeContributesNothing) {
  EXPECT_THAT(pattern("model.layers.{5-3}").ranges(), IsEmpty());
  EXPECT_THAT(expanded({"model.layers.{5-3,1}"}).paths, ElementsAre("model.layers.1"));
}

TEST(ModulePattern, ThePathSelectedTwiceIsKeptAtItsFirstPlace) {
  EXPECT_THAT(expanded({"model.layers.{2}", "lm_head", "model.layers.{1-2}", "lm_head"}).paths,
              ElementsAre("model.layers.2", "lm_head", "model.layers.1"));
}

TEST(ModulePattern, TheOrderOfTheListChangesOnlyTheOrderOfThePaths) {
  std::vector<std::string> forward = expanded({"model.embed_tokens", "model.layers.{*}", "lm_head"}).paths;
  std::vector<std::string> backward = expanded({"lm_head", "model.layers.{*}", "model.embed_tokens"}).paths;
  EXPECT_NE(forward, backward);
  std::ranges::sort(forward);
  std::ranges::sort(backward);
  EXPECT_EQ(forward, backward);
}

TEST(ModulePattern, AContainerItselfMatches) {
  EXPECT_THAT(expanded({"model.layers"}).paths, ElementsAre("model.layers"));
}

TEST(ModulePattern, AnIndexPastTheEndOnlyWarnsWhileSomethingMatches) {
  const ModuleExpansion expansion = expanded({"model.layers.{0,3-7,9}"});
  EXPECT_THAT(expansion.paths, ElementsAre("model.layers.0", "model.layers.3"));
  EXPECT_THAT(
      expansion.warnings,
      ElementsAre("f.yaml:4:5: sub_modules_to_wrap: 'model.layers.{0,3-7,9}': 'model.layers' has 4 entries, 0 to 3; "
                  "4-7,9 skipped"));
}

TEST(ModulePattern, ARangeFarPastTheEndCostsNothing) {
  const ModuleExpansion expansion = expanded({"heads.{0-2147483647}"});
  EXPECT_THAT(expansion.paths, ElementsAre("heads.0"));
  EXPECT_THAT(expansion.warnings,
              ElementsAre("f.yaml:4:5: sub_modules_to_wrap: 'heads.{0-2147483647}': 'heads' has 1 entry, 0; "
                          "1-2147483647 skipped"));
}

TEST(ModulePattern, ATailThatSomeEntriesLackOnlyWarns) {
  const ModuleExpansion expansion = expanded({"model.layers.{*}.mlp.experts"});
  EXPECT_THAT(expansion.paths, ElementsAre("model.layers.2.mlp.experts", "model.layers.3.mlp.experts"));
  EXPECT_THAT(expansion.warnings,
              ElementsAre("f.yaml:4:5: sub_modules_to_wrap: 'model.layers.{*}.mlp.experts': there is no "
                          "'model.layers.0.mlp.experts' in the model (nor 1 more of the entry); skipped"));
}

struct Bad {
  std::string text;
  std::string message;  // after "f.yaml:4:5: sub_modules_to_wrap: "
};

void PrintTo(const Bad& bad, std::ostream* out) { *out << bad.text; }

class BadPattern : public ::testing::TestWithParam<Bad> {};

TEST_P(BadPattern, IsRefusedWithItsPlaceAndWhatToWrite) {
  EXPECT_EQ(refusal({GetParam().text}), "f.yaml:4:5: sub_modules_to_wrap: " + GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Grammar, BadPattern,
    ::testing::Values(
        Bad{"", "'' is empty and would mean the model itself; name a module or remove the entry"},
        Bad{"a.{*}.b.{*}",
            "'a.{*}.b.{*}' has more than one brace group; write one entry for each value of the first group"},
        Bad{"a.{1}}", "'a.{1}}' has more than one brace group; write one entry for each value of the first group"},
        Bad{"a.{0-3", "'a.{0-3' has '{' without '}'; write {*}, {0-23} or {0-3,8}"},
        Bad{"a.0-3}", "'a.0-3}' has '}' without '{'; write {*}, {0-23} or {0-3,8}"},
        Bad{"a.}0{", "'a.}0{' has '}' before '{'; write {*}, {0-23} or {0-3,8}"},
        Bad{"{0-3}.mlp", "'{0-3}.mlp' begins with a brace; write the container before it, as in layers.{0-3}.mlp"},
        Bad{".{*}", "'.{*}' has an empty module name; write names separated by single dots, as in model.layers.{*}"},
        Bad{"a.{*,1}", "'a.{*,1}' has '*' beside other items; write {*} alone for all entries"},
        Bad{"a.{ * }", "'a.{ * }' has '*' beside other items; write {*} alone for all entries"},
        Bad{"a.{}", "'a.{}' has an empty item between its braces; write {*}, {0-23} or {0-3,8}"},
        Bad{"a.{1,,2}", "'a.{1,,2}' has an empty item between its braces; write {*}, {0-23} or {0-3,8}"},
        Bad{"a.{1,}", "'a.{1,}' has an empty item between its braces; write {*}, {0-23} or {0-3,8}"},
        Bad{"a.{x}",
            "'a.{x}' has 'x' between its braces, which is neither an index nor a range; write {*}, {0-23} or {0-3,8}"},
        Bad{"a.{1.5}",
            "'a.{1.5}' has '1.5' between its braces, which is neither an index nor a range; write {*}, {0-23} or "
            "{0-3,8}"},
        Bad{"a.{1-2-3}",
            "'a.{1-2-3}' has '1-2-3' between its braces, which is neither an index nor a range; write {*}, {0-23} or "
            "{0-3,8}"},
        Bad{"a.{3-}",
            "'a.{3-}' has '3-' between its braces, which is neither an index nor a range; write {*}, {0-23} or "
            "{0-3,8}"},
        Bad{"a.{1--2}",
            "'a.{1--2}' has '1--2' between its braces, which is neither an index nor a range; write {*}, {0-23} or "
            "{0-3,8}"},
        Bad{"a.{-1}", "'a.{-1}' has the negative item '-1'; indices start at 0"},
        Bad{"a.{99999999999}",
            "'a.{99999999999}' has the index 99999999999, which no container reaches; write {*}, {0-23} or {0-3,8}"},
        Bad{"a..b", "'a..b' has an empty module name; write names separated by single dots, as in model.layers.{*}"},
        Bad{"a.{1}.",
            "'a.{1}.' has an empty module name; write names separated by single dots, as in model.layers.{*}"},
        Bad{"model.layers.*",
            "'model.layers.*' has '*' in a module name; all entries of a container are written {*}, as in layers.{*}"},
        Bad{"model layers",
            "'model layers' has ' ' in a module name; write module names separated by dots, as in model.layers.{*}"}));

INSTANTIATE_TEST_SUITE_P(
    NothingMatches, BadPattern,
    ::testing::Values(
        Bad{"model.embed_token",
            "'model.embed_token': there is no such module; the nearest path is 'model.embed_tokens'"},
        Bad{"embed_tokens", "'embed_tokens': there is no such module; the nearest path is 'model.embed_tokens'"},
        Bad{"text.model.norm", "'text.model.norm': there is no such module; the nearest path is 'model.norm'"},
        Bad{"model.vision_projector",
            "'model.vision_projector': there is no such module; 'model' holds embed_tokens, norm, layers, adapters"},
        Bad{"layers.{*}", "'layers.{*}': there is no 'layers' in the model; the nearest path is 'model.layers'"},
        Bad{"model.layer.{*}",
            "'model.layer.{*}': there is no 'model.layer' in the model; the nearest path is 'model.layers'"},
        Bad{"model.layer.{0-3}",
            "'model.layer.{0-3}': there is no 'model.layer' in the model; the nearest path is 'model.layers'"},
        Bad{"single_mlp.{*}",
            "'single_mlp.{*}': 'single_mlp' is a single module, not a list of modules; remove the braces"},
        Bad{"model.adapters.{*}", "'model.adapters.{*}' matches nothing: 'model.adapters' is empty; remove the entry"},
        Bad{"model.layers.{5-3}",
            "'model.layers.{5-3}' selects no index: the smaller number of a range comes first; write {*}, {0-23} or "
            "{0-3,8}"},
        Bad{"model.layers.{4-9}",
            "'model.layers.{4-9}' matches nothing: 'model.layers' has 4 entries, 0 to 3; use indices among these"},
        Bad{"model.layers.{*}.mpl",
            "'model.layers.{*}.mpl' matches nothing: there is no 'model.layers.0.mpl' in the model; the nearest path "
            "is "
            "'model.layers.0.mlp'"}));

TEST(ModulePattern, OneWrongEntryFailsTheWholeList) {
  EXPECT_EQ(
      refusal({"lm_head", "model.norms"}),
      "f.yaml:4:5: sub_modules_to_wrap: 'model.norms': there is no such module; the nearest path is 'model.norm'");
}

// The same tree with other names: "text.blocks" for the layers, "text.out" for the head, "model.norm" for the MLP.
class AliasTree final : public FakeTree {
 public:
  std::optional<std::string> real_path(std::string_view path) const override {
    if (exists(path)) return std::string(path);
    const std::map<std::string, std::string> names{
        {"text.blocks", "model.layers"}, {"text.out", "lm_head"}, {"model.norm", "single_mlp"}};
    for (const auto& [alias, real] : names) {
      if (!path.starts_with(alias)) continue;
      std::string found = real + std::string(path.substr(alias.size()));
      if (exists(found)) return found;
    }
    return std::nullopt;
  }
};

ModuleExpansion expanded_by_alias(const std::vector<std::string>& texts) {
  std::vector<ModulePattern> patterns;
  for (const std::string& text : texts) patterns.push_back(pattern(text));
  return expand(patterns, AliasTree());
}

std::string refusal_by_alias(const std::string& text) {
  try {
    expanded_by_alias({text});
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ModulePatternAlias, SelectsRealPathsAndRemembersWhatWasWritten) {
  const ModuleExpansion found = expanded_by_alias({"text.out", "text.blocks.{1,3}", "text.blocks.{*}.mlp.experts"});
  EXPECT_THAT(found.paths, ElementsAre("lm_head", "model.layers.1", "model.layers.3", "model.layers.2.mlp.experts",
                                       "model.layers.3.mlp.experts"));
  EXPECT_EQ(found.written_as.at("lm_head"), "text.out");
  EXPECT_EQ(found.written_as.at("model.layers.3"), "text.blocks.3");
  EXPECT_EQ(found.written_as.at("model.layers.2.mlp.experts"), "text.blocks.2.mlp.experts");
}

TEST(ModulePatternAlias, LosesToARealPath) {
  const ModuleExpansion found = expanded_by_alias({"model.norm"});
  EXPECT_THAT(found.paths, ElementsAre("model.norm"));
  EXPECT_THAT(found.written_as, IsEmpty());
}

TEST(ModulePatternAlias, OfAModuleThatWasSelectedByItsPathIsNotRemembered) {
  const ModuleExpansion found = expanded_by_alias({"lm_head", "text.out"});
  EXPECT_THAT(found.paths, ElementsAre("lm_head"));
  EXPECT_THAT(found.written_as, IsEmpty());
}

TEST(ModulePatternAlias, IsSaidInMessagesBesideTheRealPath) {
  EXPECT_THAT(expanded_by_alias({"text.blocks.{2-5}"}).warnings,
              ElementsAre("f.yaml:4:5: sub_modules_to_wrap: 'text.blocks.{2-5}': 'model.layers' (written "
                          "'text.blocks') has 4 entries, 0 to 3; 4-5 skipped"));
  EXPECT_EQ(refusal_by_alias("text.blocks.{7}"),
            "f.yaml:4:5: sub_modules_to_wrap: 'text.blocks.{7}' matches nothing: 'model.layers' (written "
            "'text.blocks') has 4 entries, 0 to 3; use indices among these");
  EXPECT_EQ(refusal_by_alias("text.out.{*}"),
            "f.yaml:4:5: sub_modules_to_wrap: 'text.out.{*}': 'lm_head' (written 'text.out') is a single module, not a "
            "list of modules; remove the braces");
  EXPECT_EQ(refusal_by_alias("text.blocks.{*}.mpl"),
            "f.yaml:4:5: sub_modules_to_wrap: 'text.blocks.{*}.mpl' matches nothing: there is no 'model.layers.0.mpl' "
            "(written 'text.blocks.0.mpl') in the model; the nearest path is 'model.layers.0.mlp'");
}

TEST(SourceMark, WithoutALineItIsTheFile) {
  EXPECT_EQ(SourceMark{"f.yaml"}.text(), "f.yaml");
  EXPECT_EQ(kMark.text(), "f.yaml:4:5");
}

// --- Classes

TEST(ModulePattern, OfAnUnknownClassListsTheModelsClassesAndTheNearest) {
  const std::string head = "f.yaml:4:5: sub_modules_to_wrap: '";
  EXPECT_EQ(refusal({"Qwen2DecoderLayr"}),
            head +
                "Qwen2DecoderLayr': there is no such class in the model; did you mean Qwen2DecoderLayer? the "
                "model's classes are Embedding, Linear, Qwen2DecoderLayer");
  EXPECT_EQ(refusal({"transformers.models.qwen2.QWEN2DecoderLayer"}),
            head +
                "transformers.models.qwen2.QWEN2DecoderLayer': there is no such class in the model; did you mean "
                "Qwen2DecoderLayer? the model's classes are Embedding, Linear, Qwen2DecoderLayer");
  EXPECT_EQ(refusal({"T5Block"}), head +
                                      "T5Block': there is no such class in the model; the model's classes are "
                                      "Embedding, Linear, Qwen2DecoderLayer");
}

TEST(ModulePattern, ShowsNothingRawOfAnEntry) {
  EXPECT_EQ(refusal({"a\x1b[31m"}),
            "f.yaml:4:5: sub_modules_to_wrap: 'a\\x1b[31m' has '[' in a module name; write module names separated by "
            "dots, as in model.layers.{*}");
}

}  // namespace
}  // namespace loom::sharding
