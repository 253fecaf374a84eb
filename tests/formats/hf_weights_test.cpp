// Promise: a Hugging Face folder gives its tensors by name, from one file or from shards, or says what is missing.
#include "engine/formats/safetensors/hf_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>

#include "engine/core/error.h"
#include "tests/support/files.h"

namespace loom::io {
namespace {

namespace fs = std::filesystem;
using test::fresh_folder;
using test::message_of;
using test::write_file;
using ::testing::Each;
using ::testing::ElementsAre;

// A file of one-byte tensors that all hold `value`.
void write_bytes_file(const fs::path& path, const std::vector<std::string>& names, char value) {
  const std::byte byte{static_cast<unsigned char>(value)};
  std::vector<TensorToWrite> tensors;
  for (const std::string& name : names) tensors.push_back({name, DType::kU8, {1}, std::span(&byte, 1)});
  write_safetensors(path, std::move(tensors));
}

// Shard 1 holds a and b, shard 2 holds c and one the index does not name.
fs::path two_shards() {
  const auto folder = fresh_folder();
  write_bytes_file(folder / "model-00001-of-00002.safetensors", {"a", "b"}, '1');
  write_bytes_file(folder / "model-00002-of-00002.safetensors", {"c", "unlisted"}, '2');
  write_file(folder / "model.safetensors.index.json", R"({"metadata": {"total_size": 3}, "weight_map": {
    "c": "model-00002-of-00002.safetensors", "a": "model-00001-of-00002.safetensors",
    "b": "model-00001-of-00002.safetensors"}})");
  return folder;
}

TEST(HfWeights, ReadsASingleFile) {
  const auto folder = fresh_folder();
  write_bytes_file(folder / "model.safetensors", {"x", "y"}, '1');
  const HfWeights weights(folder);
  EXPECT_THAT(weights.names(), ElementsAre("x", "y"));
  EXPECT_THAT(weights.at("y").bytes, ElementsAre(std::byte{'1'}));
}

TEST(HfWeights, FindsTensorsInAllShards) {
  HfWeights opened(two_shards());
  const HfWeights weights = std::move(opened);
  EXPECT_THAT(weights.names(), ElementsAre("a", "b", "c"));
  EXPECT_THAT(weights.at("b").bytes, ElementsAre(std::byte{'1'}));
  EXPECT_THAT(weights.at("c").bytes, ElementsAre(std::byte{'2'}));
}

TEST(HfWeights, LetsTheIndexDecideWhatBelongsToTheModel) {
  EXPECT_EQ(HfWeights(two_shards()).find("unlisted"), nullptr);
}

TEST(HfWeights, PrefersTheSingleFile) {
  const auto folder = two_shards();
  write_bytes_file(folder / "model.safetensors", {"whole"}, '0');
  EXPECT_THAT(HfWeights(folder).names(), ElementsAre("whole"));
}

TEST(HfWeights, SuggestsTheNearestName) {
  const auto folder = fresh_folder();
  write_bytes_file(folder / "model.safetensors", {"lm_head.weight"}, '1');
  EXPECT_EQ(message_of<ConfigError>([&] { HfWeights(folder).at("lm_head.weigth"); }),
            folder.string() + ": no tensor 'lm_head.weigth'; did you mean 'lm_head.weight'?");
}

TEST(HfWeights, SaysWhatAFolderWithoutWeightsLacks) {
  const auto folder = fresh_folder();
  EXPECT_EQ(message_of<ConfigError>([&] { HfWeights{folder}; }),
            folder.string() +
                ": holds neither model.safetensors nor model.safetensors.index.json; save the model with "
                "safe_serialization=True");
  EXPECT_EQ(message_of<ConfigError>([&] { HfWeights{folder / "absent"}; }),
            (folder / "absent").string() + ": no such folder of weights");
}

TEST(HfWeights, NamesAMissingShardAndWhoNeedsIt) {
  const auto folder = two_shards();
  fs::remove(folder / "model-00002-of-00002.safetensors");
  EXPECT_EQ(message_of<ConfigError>([&] { HfWeights{folder}; }),
            (folder / "model.safetensors.index.json").string() +
                ": tensor 'c' is placed in shard 'model-00002-of-00002.safetensors', which is missing; fetch it into "
                "the folder");
}

TEST(HfWeights, NamesATensorThatItsShardLacks) {
  const auto folder = two_shards();
  write_bytes_file(folder / "model-00001-of-00002.safetensors", {"a"}, '1');
  EXPECT_EQ(message_of<ConfigError>([&] { HfWeights{folder}; }),
            (folder / "model.safetensors.index.json").string() +
                ": tensor 'b' is placed in shard 'model-00001-of-00002.safetensors', which does not hold it; index and "
                "shards do not belong together");
}

TEST(HfWeights, RefusesAMalformedIndex) {
  const auto folder = fresh_folder();
  const auto rejection = [&](std::string_view text) {
    write_file(folder / "model.safetensors.index.json", text);
    return message_of<ConfigError>([&] { HfWeights{folder}; });
  };
  const std::string path = (folder / "model.safetensors.index.json").string();
  EXPECT_EQ(rejection(""), path + ": not valid JSON (at byte 1 of 0)");
  EXPECT_EQ(rejection("{]"), path + ": not valid JSON (at byte 2 of 2)");
  EXPECT_EQ(rejection("{}"), path + ": \"weight_map\" is missing or not an object");
  EXPECT_EQ(rejection(R"({"weight_map":{"a":3}})"),
            path + ": tensor 'a': its shard 3 is not the name of a file in this folder");
  EXPECT_EQ(rejection(R"({"weight_map":{"a":"../x"}})"),
            path + ": tensor 'a': its shard \"../x\" is not the name of a file in this folder");
}

TEST(HfWeights, RefusesAnIndexMadeToHarm) {
  const auto folder = fresh_folder();
  const auto rejection = [&](std::string_view text) {
    write_file(folder / "model.safetensors.index.json", text);
    return message_of<ConfigError>([&] { HfWeights{folder}; });
  };
  const std::string path = (folder / "model.safetensors.index.json").string();
  EXPECT_EQ(rejection("{\"weight_map\":{\"a\":" + std::string(200000, '[') + std::string(200000, ']') + "}}"),
            path + ": nested deeper than 64 levels");
  EXPECT_EQ(rejection(R"({"weight_map":{"a":[[1]]}})"),
            path + ": tensor 'a': its shard (array) is not the name of a file in this folder");
  EXPECT_EQ(rejection("{\"weight_map\":{\"a\":\"/" + std::string(1000000, 'x') + "\"}}"),
            path + ": tensor 'a': its shard \"/" + std::string(198, 'x') +
                "... (1000003 bytes) is not the name of a file in this folder");
  EXPECT_EQ(rejection(R"({"weight_map":{"a":"s", "a":"t"}})"), path + ": key 'a' is given twice; keep one");
  EXPECT_EQ(rejection("{\"weight_map\":{\"\\u001b[2J\":3}}"),
            path + ": tensor '\\x1b[2J': its shard 3 is not the name of a file in this folder");
}

// --- After saving over a model in shards

TEST(EarlierShards, AreRemovedWithTheirIndexAndNothingElse) {
  const auto folder = two_shards();
  write_bytes_file(folder / "model-00003-of-00003.safetensors", {"forgotten"}, '3');
  write_bytes_file(folder / "adapter.safetensors", {"mine"}, '4');
  write_bytes_file(folder / "model.safetensors", {"new"}, '5');
  remove_earlier_shards(folder);
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(folder)) left.insert(entry.path().filename());
  EXPECT_THAT(left, ElementsAre("adapter.safetensors", "model.safetensors"));
  EXPECT_THAT(HfWeights(folder).names(), ElementsAre("new"));
}

TEST(HfWeights, OfAFileThatWasChangedSinceAreAnError) {
  const auto folder = fresh_folder();
  write_bytes_file(folder / "model.safetensors", {"x"}, '1');
  const HfWeights weights(folder);
  fs::resize_file(folder / "model.safetensors", 20);
  std::byte value{};
  EXPECT_THAT(message_of<Error>([&] { weights.at("x").read_box({0}, {1}, std::span(&value, 1)); }),
              ::testing::StartsWith((folder / "model.safetensors").string() + ": had "));
}

}  // namespace
}  // namespace loom::io
