// Promise: patches have the rows, columns, windows and rotary angles of Qwen-VL's processors and towers; tokens have
//          M-RoPE's positions in time, height and width, and each frequency follows its axis; pictures and image tokens
//          that do not agree are the user's error with both numbers.
// World:   text is id 1, a picture's token 10, a video's 11; a token is a square of 2 x 2 patches.
#include <cmath>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <numeric>

#include "engine/core/error.h"
#include "engine/nn/functional.h"
#include "models/decoder/rotary_embedding.h"
#include "models/qwen_vl/mrope_positions.h"
#include "models/qwen_vl/vision_positions.h"
#include "tests/models/test_rank.h"
#include "tests/support/files.h"

namespace loom::models {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

using Numbers = std::vector<std::int64_t>;

// first, first + 1, ..., last.
Numbers range(std::int64_t first, std::int64_t last) {
  Numbers numbers(static_cast<std::size_t>(last - first + 1));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

Numbers joined(const std::vector<Numbers>& parts) {
  Numbers all;
  for (const Numbers& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

Numbers repeated(const Numbers& part, int times) { return joined(std::vector<Numbers>(times, part)); }

// --- Patches

TEST(QwenVlPatches, LieSquareBySquare) {
  Numbers rows, columns;
  for (const PatchPlace& place : places_of({{1, 4, 4}}, 2)) {
    rows.push_back(place.row);
    columns.push_back(place.column);
  }
  EXPECT_THAT(rows, ElementsAre(0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 3, 3, 2, 2, 3, 3));
  EXPECT_THAT(columns, ElementsAre(0, 1, 0, 1, 2, 3, 2, 3, 0, 1, 0, 1, 2, 3, 2, 3));
}

TEST(QwenVlPatches, HaveTheSamePlacesInEachFrameAndPicture) {
  const auto flat = [](const std::vector<VisionGrid>& grids) {
    Numbers numbers;
    for (const PatchPlace& place : places_of(grids, 2)) numbers.push_back(100 * place.row + place.column);
    return numbers;
  };
  EXPECT_EQ(flat({{3, 2, 4}}), repeated(flat({{1, 2, 4}}), 3));
  EXPECT_EQ(flat({{1, 4, 2}, {2, 2, 4}}), joined({flat({{1, 4, 2}}), flat({{2, 2, 4}})}));
}

// Grids are given as numbers or as tensors.
TEST(QwenVlPatches, HaveGridsOfThreeNumbersEach) {
  const test::TestRank rank;
  const std::vector<VisionGrid> grids{{1, 4, 6}, {2, 8, 2}};
  EXPECT_EQ(grids_of(to_value(grids)), grids);
  EXPECT_EQ(grids_of(Tensor::from<std::int64_t>({1, 4, 6, 2, 8, 2}, {2, 3})), grids);
  EXPECT_EQ(grids_of(Tensor::from<std::int32_t>({1, 4, 6, 2, 8, 2}, {2, 3})), grids);
  EXPECT_TRUE(grids_of(nn::Value()).empty());
  EXPECT_THAT(test::message_of<ModelError>([] {
                grids_of(nn::ValueList{1, 4, 6, 2});
              }),
              HasSubstr("a grid has 4 numbers; three a picture are needed: time, height, width"));
}

// --- Windows

QwenVisionConfig with_windows(std::int64_t pixels = 112) {
  return {.version = QwenVlVersion::k2_5, .window_size = pixels};
}

TEST(QwenVlWindows, AreThoseOfTransformers) {
  const Windows large = windows_of({{1, 12, 12}}, with_windows());
  EXPECT_EQ(large.order, joined({{0, 1, 2, 3, 6, 7, 8, 9, 12, 13, 14, 15, 18, 19, 20, 21},
                                 {4, 5, 10, 11, 16, 17, 22, 23},
                                 {24, 25, 26, 27, 30, 31, 32, 33},
                                 {28, 29, 34, 35}}));
  EXPECT_THAT(large.lengths, ElementsAre(64, 32, 32, 16));  // cumulative 64, 96, 128, 144
  const Windows one = windows_of({{1, 8, 8}}, with_windows());
  EXPECT_EQ(one.order, range(0, 15));
  EXPECT_THAT(one.lengths, ElementsAre(64));
}

TEST(QwenVlWindows, StayWithinTheirFrame) {
  const Windows wide = windows_of({{2, 4, 6}}, with_windows());
  EXPECT_EQ(wide.order, range(0, 11));
  EXPECT_THAT(wide.lengths, ElementsAre(24, 24));
  const Windows narrow = windows_of({{2, 4, 6}}, with_windows(56));  // 2 x 2 cells
  EXPECT_THAT(narrow.order, ElementsAre(0, 1, 3, 4, 2, 5, 6, 7, 9, 10, 8, 11));
  EXPECT_THAT(narrow.lengths, ElementsAre(16, 8, 16, 8));
}

TEST(QwenVlWindows, CountCellsOverAllPictures) {
  const Windows windows = windows_of({{1, 2, 6}, {1, 4, 6}}, with_windows(56));
  EXPECT_THAT(windows.order, ElementsAre(0, 1, 2, 3, 4, 6, 7, 5, 8));
  EXPECT_THAT(windows.lengths, ElementsAre(8, 4, 16, 8));
}

TEST(QwenVlWindows, HaveEachCellOnce) {
  for (const VisionGrid& grid : {VisionGrid{1, 12, 12}, {1, 8, 8}, {2, 4, 6}, {3, 10, 14}}) {
    for (const std::int64_t pixels : {28, 56, 84, 112}) {
      const Windows windows = windows_of({grid}, with_windows(pixels));
      const std::int64_t cells = grid.t * grid.h * grid.w / 4, cells_of_frame = grid.h * grid.w / 4;
      EXPECT_EQ(std::accumulate(windows.lengths.begin(), windows.lengths.end(), std::int64_t{0}), 4 * cells);
      ASSERT_EQ(std::ssize(windows.order), cells);
      for (std::int64_t i = 0; i < cells; ++i) {
        EXPECT_EQ(windows.order[static_cast<std::size_t>(i)] / cells_of_frame, i / cells_of_frame);
      }
      Numbers sorted = windows.order;
      std::ranges::sort(sorted);
      EXPECT_EQ(sorted, range(0, cells - 1));
    }
  }
}

// --- Angles of patches

TEST(QwenVlRotary, TurnsThePatchAtTheOriginByNothing) {
  const test::TestRank rank;
  const auto [cos, sin] = vision_rotary({{0, 0}}, 80);
  EXPECT_EQ(cos.dtype(), DType::kF32);
  EXPECT_EQ(cos.shape(), (Shape{1, 80}));
  EXPECT_THAT(cos.to_vector<float>(), Each(1.0F));
  EXPECT_THAT(sin.to_vector<float>(), Each(0.0F));
}

// 20 frequencies of the row, 20 of the column, and both again.
TEST(QwenVlRotary, TurnsByTheRowAndThenByTheColumn) {
  const test::TestRank rank;
  const auto [cos, sin] = vision_rotary({{0, 1}, {2, 3}}, 80);
  const std::vector<float> cosines = cos.to_vector<float>(), sines = sin.to_vector<float>();
  for (std::size_t i = 0; i < 80; ++i) {
    const std::size_t j = i % 20;
    const double angle = (i % 40 < 20 ? 2 : 3) * std::pow(10000.0, -2.0 * static_cast<double>(j) / 40);
    EXPECT_NEAR(cosines[80 + i], std::cos(angle), 1e-6) << i;
    EXPECT_NEAR(sines[80 + i], std::sin(angle), 1e-6) << i;
  }
}

// Between the learned positions a linear function stays what it is: row and column, stretched over the picture.
TEST(QwenVlLearnedPositions, AreInterpolatedOverThePicture) {
  const test::TestRank rank;
  constexpr std::int64_t kSide = 8;
  for (const VisionGrid& grid : {VisionGrid{1, 8, 8}, {1, 4, 6}, {2, 2, 12}}) {
    std::vector<double> found(static_cast<std::size_t>(grid.t * grid.h * grid.w), 0), shares(found.size(), 0);
    const auto corners = interpolated_positions({grid}, 2, kSide * kSide);
    ASSERT_EQ(corners.size(), 4U);
    for (const WeightedPositions& corner : corners) {
      const std::vector<std::int32_t> ids = corner.ids.to_vector<std::int32_t>();
      const std::vector<float> weights = corner.weights.to_vector<float>();
      ASSERT_EQ(ids.size(), found.size());
      for (std::size_t i = 0; i < ids.size(); ++i) {
        found[i] += weights[i] * (100.0 * (ids[i] / kSide) + ids[i] % kSide);
        shares[i] += weights[i];
      }
    }
    const std::vector<PatchPlace> places = places_of({grid}, 2);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const double row = static_cast<double>(places[i].row * (kSide - 1)) / static_cast<double>(grid.h - 1);
      const double column = static_cast<double>(places[i].column * (kSide - 1)) / static_cast<double>(grid.w - 1);
      EXPECT_NEAR(found[i], 100 * row + column, 2e-4) << i;
      EXPECT_NEAR(shares[i], 1, 1e-6) << i;
    }
  }
}

// --- M-RoPE

QwenVlConfig config_of(QwenVlVersion version) {
  QwenVlConfig config;
  config.version = config.vision.version = version;
  config.vision.tokens_per_second = 2;
  config.image_token_id = 10;
  config.video_token_id = 11;
  return config;
}

Tensor row_of(const Numbers& ids) {
  const Tensor tensor = Tensor::host({1, std::ssize(ids)}, DType::kI64);
  std::ranges::copy(ids, tensor.data<std::int64_t>());
  return tensor;
}
// Rows of equal length.
Tensor rows_of(const std::vector<Numbers>& rows) {
  const Numbers all = joined(rows);
  const Tensor tensor = Tensor::host({std::ssize(rows), std::ssize(rows.front())}, DType::kI32);
  std::ranges::copy(all, tensor.data<std::int32_t>());
  return tensor;
}

// Of all rows, one after another.
struct Axes {
  Numbers time, height, width, deltas;
  bool operator==(const Axes&) const = default;
};
void PrintTo(const Axes& axes, std::ostream* out) {
  *out << fmt::format("time {} height {} width {} deltas {}", fmt::join(axes.time, " "), fmt::join(axes.height, " "),
                      fmt::join(axes.width, " "), fmt::join(axes.deltas, " "));
}

class QwenVlPositions : public ::testing::Test {
 protected:
  static Axes positions(const Tensor& ids, const VisionInputs& inputs, QwenVlVersion version = QwenVlVersion::k2_5,
                        const Tensor& mask = {}) {
    const MropePositions found = mrope_positions(ids, mask, inputs, config_of(version));
    EXPECT_EQ(found.ids.shape(), (Shape{3, ids.shape()[0], ids.shape()[1]}));
    const std::vector<std::int32_t> all = found.ids.to_vector<std::int32_t>();
    const auto third = std::ssize(all) / 3;
    const auto axis = [&](std::ptrdiff_t i) { return Numbers(all.begin() + i * third, all.begin() + (i + 1) * third); };
    return {axis(0), axis(1), axis(2), found.deltas};
  }
  template <class E = ConfigError>
  static std::string refused(const Tensor& ids, const VisionInputs& inputs, const Tensor& mask = {}) {
    return test::message_of<E>([&] { mrope_positions(ids, mask, inputs, config_of(QwenVlVersion::k2_5)); });
  }

  const test::TestRank rank_;
};

TEST_F(QwenVlPositions, OfTextCountUpInAllAxes) {
  for (const QwenVlVersion version : {QwenVlVersion::k2, QwenVlVersion::k2_5, QwenVlVersion::k3}) {
    EXPECT_EQ(positions(rows_of({{1, 1, 1, 1}, {1, 2, 3, 4}}), {}, version),
              (Axes{{0, 1, 2, 3, 0, 1, 2, 3}, {0, 1, 2, 3, 0, 1, 2, 3}, {0, 1, 2, 3, 0, 1, 2, 3}, {0, 0}}));
  }
}

TEST_F(QwenVlPositions, OfAPictureAreItsRowsAndColumns) {
  const Tensor ids = row_of({1, 1, 2, 10, 10, 10, 10, 10, 10, 3, 1, 1});
  const Axes expected{{0, 1, 2, 3, 3, 3, 3, 3, 3, 6, 7, 8},
                      {0, 1, 2, 3, 3, 3, 4, 4, 4, 6, 7, 8},
                      {0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8},
                      {-3}};
  for (const QwenVlVersion version : {QwenVlVersion::k2, QwenVlVersion::k2_5, QwenVlVersion::k3}) {
    EXPECT_EQ(positions(ids, {{{1, 4, 6}}, {}}, version), expected);
  }
  EXPECT_EQ(positions(rows_of({ids.to_vector<std::int64_t>()}), {{{1, 4, 6}}, {}}), expected);  // int32
}

TEST_F(QwenVlPositions, OfNeighbouringPicturesFollowEachOther) {
  const Axes expected{{0, 0, 0, 0, 2, 2, 4, 5}, {0, 0, 1, 1, 2, 2, 4, 5}, {0, 1, 0, 1, 2, 3, 4, 5}, {-2}};
  EXPECT_EQ(positions(row_of({10, 10, 10, 10, 10, 10, 1, 1}), {{{1, 4, 4}, {1, 2, 4}}, {}}), expected);
}

// 12 tokens of a video of 3 frames of 2 x 2, from position 2 on; the times of its frames, and the text behind it.
Axes around_video(const Numbers& times, std::int64_t next) {
  Axes axes{{0, 1}, {0, 1}, {0, 1}, {next + 2 - 16}};
  for (const std::int64_t time : times) axes.time.insert(axes.time.end(), 4, time);
  axes.height = joined({axes.height, repeated({2, 2, 3, 3}, 3), {next, next + 1}});
  axes.width = joined({axes.width, repeated({2, 3}, 6), {next, next + 1}});
  axes.time = joined({axes.time, {next, next + 1}});
  return axes;
}
Numbers with_video() { return joined({{1, 2}, Numbers(12, 11), {3, 1}}); }

TEST_F(QwenVlPositions, OfAVideoFollowItsSecondsInQwen25) {
  const auto of_seconds = [](std::vector<float> seconds) {
    return positions(row_of(with_video()), {{}, {{3, 4, 4}}, std::move(seconds)});
  };
  const Axes golden{{0, 1, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6, 7, 8},
                    {0, 1, 2, 2, 3, 3, 2, 2, 3, 3, 2, 2, 3, 3, 7, 8},
                    {0, 1, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 7, 8},
                    {-7}};
  EXPECT_EQ(of_seconds({1.0}), golden);
  EXPECT_EQ(of_seconds({}), golden);                         // a second
  EXPECT_EQ(of_seconds({0.5}), around_video({2, 3, 4}, 5));  // not 0 seconds
  EXPECT_EQ(of_seconds({0.4}), around_video({2, 2, 3}, 4));  // 0, 0.8, 1.6
  EXPECT_EQ(of_seconds({0.1}), around_video({2, 2, 2}, 4));
}

TEST_F(QwenVlPositions, OfEachVideoFollowItsOwnSeconds) {
  const Tensor ids = row_of({11, 11, 1, 11, 11});
  const Axes expected{{0, 1, 2, 3, 7}, {0, 0, 2, 3, 3}, {0, 0, 2, 3, 3}, {3}};
  EXPECT_EQ(positions(ids, {{}, {{2, 2, 2}, {2, 2, 2}}, {0.5, 2.0}}), expected);
}

TEST_F(QwenVlPositions, OfAVideoCountItsFramesInQwen2) {
  EXPECT_EQ(positions(row_of(with_video()), {{}, {{3, 4, 4}}, {}}, QwenVlVersion::k2), around_video({2, 3, 4}, 5));
  EXPECT_EQ(positions(row_of(with_video()), {{}, {{3, 4, 4}}, {7.0}}, QwenVlVersion::k2), around_video({2, 3, 4}, 5));
}

// The text behind a long video is behind its last frame: 2 rows and columns, 5 frames.
TEST_F(QwenVlPositions, OfTextBehindAVideoAreBehindAllOfIt) {
  const Axes found = positions(row_of(joined({Numbers(20, 11), {1}})), {{}, {{5, 4, 4}}, {}}, QwenVlVersion::k2);
  EXPECT_EQ(found.time.back(), 5);
  EXPECT_THAT(found.deltas, ElementsAre(-15));
}

TEST_F(QwenVlPositions, OfFramesAreThoseOfPicturesInQwen3) {
  const Axes expected{
      {0, 1, 1, 1, 1, 3, 4, 4, 4, 4, 6}, {0, 1, 1, 2, 2, 3, 4, 4, 5, 5, 6}, {0, 1, 2, 1, 2, 3, 4, 5, 4, 5, 6}, {-4}};
  EXPECT_EQ(positions(row_of({1, 11, 11, 11, 11, 1, 11, 11, 11, 11, 1}), {{}, {{2, 4, 4}}, {}}, QwenVlVersion::k3),
            expected);
}

TEST_F(QwenVlPositions, OfPicturesAndVideosAreTakenInTheirOwnOrder) {
  const Axes expected{{0, 1, 1, 3, 4}, {0, 1, 1, 3, 4}, {0, 1, 2, 3, 4}, {0}};
  EXPECT_EQ(positions(row_of({11, 10, 10, 10, 11}), {{{1, 2, 4}, {1, 2, 2}}, {{1, 2, 2}, {1, 2, 2}}}), expected);
}

// --- Padding

TEST_F(QwenVlPositions, OfPaddingAreOneAndCountAsNothing) {
  const Tensor mask = rows_of({{1, 1, 1, 0, 0}, {0, 0, 1, 1, 1}});
  const Numbers expected{0, 1, 2, 1, 1, 1, 1, 0, 1, 2};
  EXPECT_EQ(positions(rows_of({{1, 1, 1, 0, 0}, {0, 0, 1, 1, 1}}), {}, QwenVlVersion::k2_5, mask),
            (Axes{expected, expected, expected, {0, 0}}));
  const Axes with_picture{{0, 1, 1, 1, 1, 3, 1, 1}, {0, 1, 1, 2, 2, 3, 1, 1}, {0, 1, 2, 1, 2, 3, 1, 1}, {-2}};
  EXPECT_EQ(positions(row_of({1, 10, 10, 10, 10, 1, 0, 0}), {{{1, 4, 4}}, {}}, QwenVlVersion::k2_5,
                      rows_of({{1, 1, 1, 1, 1, 1, 0, 0}})),
            with_picture);
}

// The white picture of a batch of text; the next picture is still the next row's.
TEST_F(QwenVlPositions, OfAPictureUnderThePaddingAreOne) {
  const Tensor ids = rows_of({{1, 1, 10, 10, 10, 10}, {1, 10, 10, 1, 1, 1}});
  const Tensor mask = rows_of({{1, 1, 0, 0, 0, 0}, {1, 1, 1, 1, 1, 0}});
  const Axes expected{{0, 1, 1, 1, 1, 1, 0, 1, 1, 3, 4, 1},
                      {0, 1, 1, 1, 1, 1, 0, 1, 1, 3, 4, 1},
                      {0, 1, 1, 1, 1, 1, 0, 1, 2, 3, 4, 1},
                      {0, 0}};
  EXPECT_EQ(positions(ids, {{{1, 4, 4}, {1, 2, 4}}, {}}, QwenVlVersion::k2_5, mask), expected);
}

// --- What does not agree

TEST_F(QwenVlPositions, RefusesTokensThatAreNotThoseOfTheirPicture) {
  EXPECT_EQ(refused(row_of({1, 10, 10, 10, 1}), {{{1, 4, 4}}, {}}),
            "picture 0 has 4 features, but input_ids has 3 tokens with id 10 from [0, 1] on; write one token for each "
            "feature");
  EXPECT_EQ(refused(rows_of({{1, 1, 1}, {1, 10, 10}}), {{{1, 4, 4}}, {}}),  // not over the end of a row
            "picture 0 has 4 features, but input_ids has 2 tokens with id 10 from [1, 1] on; write one token for each "
            "feature");
  EXPECT_EQ(refused(row_of({11, 11, 1, 11, 11, 1}), {{}, {{1, 2, 4}, {2, 2, 4}}}),
            "video 1 has 4 features, but input_ids has 2 tokens with id 11 from [0, 3] on; write one token for each "
            "feature");
  EXPECT_EQ(refused(row_of({1, 10, 10, 10, 10}), {{{1, 4, 4}}, {}}, rows_of({{1, 1, 1, 0, 0}})),  // half of it padding
            "picture 0 has 4 features, but input_ids has 2 tokens with id 10 from [0, 1] on; write one token for each "
            "feature");
}

TEST_F(QwenVlPositions, RefusesMoreTokensThanPicturesAndMorePicturesThanTokens) {
  EXPECT_EQ(refused(row_of({1, 10, 10, 10}), {{{1, 2, 4}}, {}}),
            "input_ids has a token with id 10 at [0, 3], behind the last picture: there are 1 grids; write one token "
            "for each feature of a picture");
  EXPECT_EQ(refused(row_of({1, 11}), {{{1, 2, 2}}, {}}),
            "input_ids has a token with id 11 at [0, 1], behind the last video: there are 0 grids; write one token "
            "for each feature of a video");
  EXPECT_EQ(refused(row_of({1, 10, 10, 1}), {{{1, 2, 4}, {1, 2, 2}}, {}}),
            "there are 2 grids of pictures, but input_ids has tokens of 1 alone (id 10); write one token for each "
            "feature");
  EXPECT_EQ(refused(row_of({1, 1}), {{}, {{1, 2, 4}}}),
            "there are 1 grids of videos, but input_ids has tokens of 0 alone (id 11); write one token for each "
            "feature");
}

TEST_F(QwenVlPositions, RefusesInputsOfOtherShapes) {
  const Tensor flat = Tensor::host({4}, DType::kI64);
  EXPECT_EQ(refused<ModelError>(flat, {}), "[rank 0] input_ids [4], expected [batch, sequence]");
  EXPECT_EQ(refused<ModelError>(row_of({1, 1, 1}), {}, row_of({1, 1, 1})),
            "[rank 0] attention_mask is int64 [1, 3]; int32 [1, 3] is needed");
  EXPECT_EQ(refused<ModelError>(row_of({1, 1, 1}), {}, rows_of({{1, 1}})),
            "[rank 0] attention_mask is int32 [1, 2]; int32 [1, 3] is needed");
  EXPECT_EQ(refused<ModelError>(row_of({11}), {{}, {{1, 2, 2}}, {1.0, 0.5}}),
            "[rank 0] second_per_grid_ts has 2 numbers for 1 videos; one each is needed");
}

// --- Frequencies

// How many frequencies of 64 (head dim 128, theta 10^6) follow each axis, and in which order.
struct Sections {
  const char* name;
  Numbers section;
  bool interleaved;

  RotaryScaling scaling() const {
    RotaryScaling scaling;
    scaling.mrope_section = section;
    scaling.mrope_interleaved = interleaved;
    return scaling;
  }
  RotaryEmbedding embedding() const { return {"RotaryEmbedding", Rotary{128, 64, 1e6, scaling()}}; }
};

class QwenVlFrequencies : public ::testing::TestWithParam<Sections> {
 protected:
  test::TestRank rank_;
};
INSTANTIATE_TEST_SUITE_P(QwenVl, QwenVlFrequencies,
                         ::testing::Values(Sections{"neighbours", {16, 24, 24}, false},
                                           Sections{"interleaved", {24, 20, 20}, true}),
                         [](const auto& info) { return info.param.name; });

// Where axis 0, 1 or 2 has moved away from 5 on, the columns of the sines that change.
Numbers columns_of_axis(RotaryEmbedding& rotary, std::int64_t axis) {
  const auto sines = [&](std::int32_t moved) {
    std::vector<std::int32_t> positions(3, 5);
    positions[static_cast<std::size_t>(axis)] = moved;
    const Tensor ids = Tensor::host({3, 1, 1}, DType::kI32);
    std::ranges::copy(positions, ids.data<std::int32_t>());
    return rotary(Tensor::zeros({1, 1, 8}, DType::kF32), ids, 64).list()[1].tensor().to_vector<float>();
  };
  const std::vector<float> before = sines(5), after = sines(9);
  Numbers columns;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i] != after[i]) columns.push_back(static_cast<std::int64_t>(i));
  }
  return columns;
}

TEST_P(QwenVlFrequencies, FollowTheirAxisAlone) {
  RotaryEmbedding rotary = GetParam().embedding();
  std::vector<Numbers> expected{range(0, 15), range(16, 39), range(40, 63)};
  if (GetParam().interleaved) {
    expected.assign(3, {});
    for (std::int64_t i = 0; i < 64; ++i) expected[static_cast<std::size_t>(i < 60 ? i % 3 : 0)].push_back(i);
  }
  for (std::size_t axis = 0; axis < 3; ++axis) {
    Numbers both = expected[axis];
    for (const std::int64_t i : expected[axis]) both.push_back(64 + i);
    EXPECT_THAT(columns_of_axis(rotary, static_cast<std::int64_t>(axis)), ElementsAreArray(both)) << axis;
  }
}

TEST_P(QwenVlFrequencies, AtEqualPositionsHaveTheBitsOfPlainRotary) {
  const Tensor ids = rows_of({{0, 1, 2, 3, 4}, {7, 3, 63, 0, 1}});
  const Numbers rows = {0, 1, 2, 3, 4, 7, 3, 63, 0, 1};
  const Tensor by_axes = Tensor::host({3, 2, 5}, DType::kI32);
  std::ranges::copy(repeated(rows, 3), by_axes.data<std::int32_t>());
  const Tensor hidden = Tensor::zeros({2, 5, 8}, DType::kF32);
  for (const auto& kernels : {nn::KernelOptions::fast(), nn::KernelOptions::pytorch()}) {
    rank_.context.slot<nn::KernelOptions>() = kernels;
    RotaryEmbedding rotary = GetParam().embedding();
    RotaryEmbedding plain("RotaryEmbedding", Rotary{128, 64, 1e6, {}});
    const nn::ValueList found = rotary(hidden, by_axes, 64).list(), expected = plain(hidden, ids, 64).list();
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].tensor().shape(), (Shape{2, 5, 128}));
      EXPECT_EQ(found[i].tensor().to_vector<float>(), expected[i].tensor().to_vector<float>()) << i;
    }
    // Without positions they are 0, 1, 2, ... as in plain text.
    const std::vector<float> text = rotary(hidden).list()[0].tensor().to_vector<float>();
    const std::vector<float> first_row = expected[0].tensor().to_vector<float>();
    EXPECT_TRUE(std::equal(text.begin(), text.end(), first_row.begin()));
  }
}

// Tables grow with the highest position of any axis.
TEST_P(QwenVlFrequencies, ReachTheHighestPositionOfAnyAxis) {
  RotaryEmbedding rotary = GetParam().embedding();
  const Tensor ids = Tensor::host({3, 1, 1}, DType::kI32);
  ids.data<std::int32_t>()[0] = ids.data<std::int32_t>()[1] = 0;
  ids.data<std::int32_t>()[2] = 40;
  const Tensor hidden = Tensor::zeros({1, 1, 8}, DType::kF32);
  const std::vector<float> sines = rotary(hidden, ids, 64).list()[1].tensor().to_vector<float>();
  const std::vector<int> axes = mrope_axes(GetParam().scaling());
  for (std::size_t i = 0; i < 64; ++i) {
    const double frequency = std::pow(1e6, -2.0 * static_cast<double>(i) / 128);
    EXPECT_NEAR(sines[i], axes[i] == 2 ? std::sin(40 * frequency) : 0, 1e-5) << i;
  }
  ids.data<std::int32_t>()[1] = 64;
  EXPECT_THAT(test::message_of<ModelError>([&] { rotary(hidden, ids, 64); }),
              HasSubstr("position_ids has 64 at [1, 0]; allowed are 0 to 63"));
}

TEST(QwenVlPlainRotary, TakesNoPositionsByAxes) {
  const test::TestRank rank;
  RotaryEmbedding plain("RotaryEmbedding", Rotary{128, 64, 1e6, {}});
  const Tensor ids = Tensor::host({3, 1, 2}, DType::kI32);
  std::fill_n(ids.data<std::int32_t>(), 6, 0);
  EXPECT_THAT(test::message_of<ModelError>([&] {
                plain(Tensor::zeros({1, 2, 8}, DType::kF32), ids, 64);
              }),
              HasSubstr("position_ids is int32 [3, 1, 2]; int32 [1, 2] is needed"));
}

}  // namespace
}  // namespace loom::models
