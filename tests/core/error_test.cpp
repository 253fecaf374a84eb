// Promise: error texts start with the rank where one is current, except ConfigError; the nearest spelling is offered.
#include "engine/core/error.h"

#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "engine/core/rank_context.h"
#include "engine/core/spelling.h"

namespace loom {
namespace {

template <class E, class Body>
std::string text_of(Body body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing was thrown";
}

void throw_device() { raise<DeviceError>("device {} has {} streams", 0, 7); }
void throw_config() { config_error("sharding_size is {}, but {} ranks are running", 3, 4); }
void throw_model() { check_model(1 > 2, "the batch has no '{}'", "ids"); }
void throw_invariant() { require(1 > 2, "reshard of '{}' while Gathering", "layers.1"); }

TEST(ErrorText, WithoutARankHasNoPrefix) {
  EXPECT_EQ(text_of<DeviceError>(throw_device), "device 0 has 7 streams");
  EXPECT_EQ(text_of<ConfigError>(throw_config), "sharding_size is 3, but 4 ranks are running");
  EXPECT_EQ(text_of<InvariantError>(throw_invariant), "internal: reshard of 'layers.1' while Gathering");
}

TEST(ErrorText, OnARankStartsWithIt) {
  RankContext context(37, 64);
  const RankScope scope(context);
  EXPECT_EQ(text_of<DeviceError>(throw_device), "[rank 37] device 0 has 7 streams");
  EXPECT_EQ(text_of<InvariantError>(throw_invariant), "[rank 37] internal: reshard of 'layers.1' while Gathering");
}

TEST(ErrorText, OfAModelErrorNamesWhatOfTheProgramRuns) {
  EXPECT_EQ(text_of<ModelError>(throw_model), "the batch has no 'ids'");
  RankContext context(37, 64);
  const RankScope scope(context);
  EXPECT_EQ(text_of<ModelError>(throw_model), "[rank 37] the batch has no 'ids'");
  context.set_program_place([] { return std::string("the forward of 'head' (Linear)"); });
  EXPECT_EQ(text_of<ModelError>(throw_model), "[rank 37] in the forward of 'head' (Linear): the batch has no 'ids'");
  context.set_program_place([] { return std::string(); });
  EXPECT_EQ(text_of<ModelError>(throw_model), "[rank 37] the batch has no 'ids'");
}

TEST(ErrorText, OfAConfigErrorIsTheSameOnEveryRank) {
  RankContext context(37, 64);
  const RankScope scope(context);
  EXPECT_EQ(text_of<ConfigError>(throw_config), "sharding_size is 3, but 4 ranks are running");
}

TEST(ErrorText, OfAConditionThatHoldsIsNone) {
  EXPECT_NO_THROW(require(true, "never said"));
  EXPECT_NO_THROW(check_model(true, "never said"));
}

TEST(ErrorFamilies, OutOfMemoryIsADeviceErrorAndAllAreErrors) {
  EXPECT_EQ(text_of<DeviceError>([] { raise<OutOfMemoryError>("full"); }), "full");
  EXPECT_EQ(text_of<Error>([] { raise<CommError>("peer gone"); }), "peer gone");
}

const std::vector<std::string> kKeys{"reshard_after_forward", "offload_to_cpu", "sharding_size", "prefetch"};

TEST(NearestSpelling, OffersTheClosestKey) {
  EXPECT_EQ(nearest_spelling("reshard_after_foward", kKeys), "reshard_after_forward");
  EXPECT_EQ(nearest_spelling("ofload_to_cpu", kKeys), "offload_to_cpu");
  EXPECT_EQ(nearest_spelling("prefecth", kKeys), "prefetch") << "two swapped letters are two edits";
  EXPECT_EQ(nearest_spelling("prefetch", kKeys), "prefetch");
}

TEST(Spelling, LowerCaseChangesAsciiLettersAlone) {
  EXPECT_EQ(lower_case("RMSNorm_1-\xC3\x84"), "rmsnorm_1-\xC3\x84");
  EXPECT_EQ(lower_case(""), "");
}

TEST(NearestSpelling, OffersNothingFarAway) {
  EXPECT_EQ(nearest_spelling("learning_rate", kKeys), std::nullopt);
  EXPECT_EQ(nearest_spelling("", kKeys), std::nullopt);
  EXPECT_EQ(nearest_spelling("prefetch", {}), std::nullopt);
}

TEST(NearestSpelling, AllowsAThirdOfTheWordAndAtLeastTwoEdits) {
  const std::vector<std::string> words{"abcdefghi"};
  EXPECT_EQ(nearest_spelling("abcdefxyz", words), "abcdefghi") << "3 of 9";
  EXPECT_EQ(nearest_spelling("abcdewxyz", words), std::nullopt) << "4 of 9";
  const std::vector<std::string> short_words{"on"};
  EXPECT_EQ(nearest_spelling("no", short_words), "on") << "2 edits";
}

TEST(NearestSpelling, PrefersTheFirstOfEquals) {
  const std::vector<std::string> words{"cat", "bat"};
  EXPECT_EQ(nearest_spelling("rat", words), "cat");
}

}  // namespace
}  // namespace loom
