// Promise: a micro-batch has rows of one length with targets moved by one, all pictures in reading order, and a white
//          picture that nothing learns from where it has none.
// World:   ids and pictures made by hand.
#include "engine/multimodal/collator.h"

#include <gmock/gmock.h>

namespace loom::multimodal {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using Ids = std::vector<std::int32_t>;

constexpr std::int32_t kPad = 9;

Patches patches(const Grid& grid, float value) {
  return {grid, std::vector<float>(static_cast<std::size_t>(2 * grid.t * grid.h * grid.w), value)};
}

ReadSample sample(Ids ids, Ids labels, std::vector<Patches> images = {}) {
  return {
      .text = {std::move(ids), std::move(labels)}, .images = std::move(images), .videos = {}, .second_per_grid = {}};
}

Collator collator(CollatorOptions options = {}) {
  options.pad = kPad;
  options.row_shape = {2};
  return {options, {patches({1, 2, 2}, 255), {50, 51, 52}}};
}

Ids values(const data::Batch& batch, std::string_view name) { return batch[name].to_vector<std::int32_t>(); }

TEST(Collator, PadsRowsAndMovesLabels) {
  const data::Batch batch = collator().collate(
      {sample({1, 2, 3}, {-100, 2, 3}, {patches({1, 2, 2}, 7)}), sample({4, 5, 6, 7, 8}, {-100, -100, 6, 7, 8})});
  EXPECT_EQ(batch["input_ids"].shape(), (Shape{2, 8}));
  EXPECT_THAT(values(batch, "input_ids"), ElementsAre(1, 2, 3, 9, 9, 9, 9, 9, 4, 5, 6, 7, 8, 9, 9, 9));
  EXPECT_THAT(values(batch, "targets"), ElementsAre(2, 3, -100, -100, -100, -100, -100, -100,  //
                                                    -100, 6, 7, 8, -100, -100, -100, -100));
  EXPECT_THAT(values(batch, "attention_mask"), ElementsAre(1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0));
  EXPECT_EQ(count_tokens(batch).scored, 5);
  EXPECT_EQ(count_tokens(batch).all, 16);
}

TEST(Collator, RoundsLengthsUpToItsMultiple) {
  const std::vector<Patches> one{patches({1, 2, 2}, 7)};
  const Ids eight(8, 1), nine(9, 1);
  EXPECT_EQ(collator().collate({sample(eight, eight, one)})["input_ids"].shape(), (Shape{1, 8}));
  EXPECT_EQ(collator().collate({sample(nine, nine, one)})["input_ids"].shape(), (Shape{1, 16}));
  EXPECT_EQ(collator({.multiple_of = 12}).collate({sample(eight, eight, one)})["input_ids"].shape(), (Shape{1, 12}));
}

TEST(Collator, EndsARowWithoutTarget) {
  const Ids eight{1, 2, 3, 4, 5, 6, 7, 8};
  const auto batch = collator({.learns_padding = true}).collate({sample(eight, eight, {patches({1, 2, 2}, 7)})});
  EXPECT_THAT(values(batch, "targets"), ElementsAre(2, 3, 4, 5, 6, 7, 8, -100));
}

TEST(Collator, LearnsPaddingWhereThatIsWanted) {
  const auto batch = collator({.learns_padding = true}).collate({sample({1, 2}, {1, 2}, {patches({1, 2, 2}, 7)})});
  EXPECT_THAT(values(batch, "targets"), ElementsAre(2, 9, 9, 9, 9, 9, 9, -100));
}

TEST(Collator, JoinsPicturesInReadingOrder) {
  ReadSample second = sample({1}, {1}, {patches({1, 2, 4}, 3)});
  second.videos = {patches({2, 2, 2}, 4)};
  second.second_per_grid = {0.5};
  const auto batch =
      collator().collate({sample({1}, {1}, {patches({1, 2, 2}, 1), patches({1, 4, 2}, 2)}), std::move(second)});
  EXPECT_EQ(batch["pixel_values"].shape(), (Shape{20, 2}));
  const auto pixels = batch["pixel_values"].to_vector<float>();
  EXPECT_THAT((std::vector{pixels[0], pixels[7], pixels[8], pixels[23], pixels[24], pixels[39]}),
              ElementsAre(1, 1, 2, 2, 3, 3));
  EXPECT_EQ(batch["image_grid_thw"].dtype(), DType::kI64);
  EXPECT_THAT(batch["image_grid_thw"].to_vector<std::int64_t>(), ElementsAre(1, 2, 2, 1, 4, 2, 1, 2, 4));
  EXPECT_EQ(batch["pixel_values_videos"].shape(), (Shape{8, 2}));
  EXPECT_THAT(batch["video_grid_thw"].to_vector<std::int64_t>(), ElementsAre(2, 2, 2));
  EXPECT_THAT(batch["second_per_grid_ts"].to_vector<float>(), ElementsAre(0.5F));
  EXPECT_THAT(values(batch, "input_ids"), ElementsAreArray({1, 9, 9, 9, 9, 9, 9, 9, 1, 9, 9, 9, 9, 9, 9, 9}));
}

TEST(Collator, GivesABatchOfTextAWhitePictureThatNothingLearnsFrom) {
  const auto batch = collator().collate({sample({1, 2}, {-100, 2}), sample({3, 4, 5}, {-100, 4, 5})});
  EXPECT_THAT(values(batch, "input_ids"), ElementsAre(1, 2, 50, 51, 52, 9, 9, 9, 3, 4, 5, 9, 9, 9, 9, 9));
  EXPECT_THAT(values(batch, "attention_mask"), ElementsAre(1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0));
  EXPECT_THAT(values(batch, "targets"), ElementsAre(2, -100, -100, -100, -100, -100, -100, -100,  //
                                                    4, 5, -100, -100, -100, -100, -100, -100));
  EXPECT_EQ(batch["pixel_values"].shape(), (Shape{4, 2}));
  EXPECT_THAT(batch["pixel_values"].to_vector<float>(), Each(255));
  EXPECT_THAT(batch["image_grid_thw"].to_vector<std::int64_t>(), ElementsAre(1, 2, 2));
  EXPECT_TRUE(batch.find("pixel_values_videos").is_none());
}

TEST(Collator, AddsNoWhitePictureBesideAVideo) {
  ReadSample video = sample({1}, {1});
  video.videos = {patches({1, 2, 2}, 4)};
  video.second_per_grid = {1};
  const auto batch = collator().collate({sample({2}, {2}), std::move(video)});
  EXPECT_TRUE(batch.find("pixel_values").is_none());
  EXPECT_THAT(values(batch, "input_ids"), ElementsAreArray({2, 9, 9, 9, 9, 9, 9, 9, 1, 9, 9, 9, 9, 9, 9, 9}));
}

TEST(Collator, LeavesGridsOutForTiles) {
  const auto batch = collator({.has_grids = false}).collate({sample({1}, {1}, {patches({1, 2, 2}, 7)})});
  EXPECT_FALSE(batch.find("pixel_values").is_none());
  EXPECT_TRUE(batch.find("image_grid_thw").is_none());
}

}  // namespace
}  // namespace loom::multimodal
