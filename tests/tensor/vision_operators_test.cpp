// Promise: the operators of vision towers move elements where torch's conv2d, InternVL's pixel_shuffle, an order of
//          rows and masked_scatter have them; grids are resized as torch's bicubic interpolation does, gradients
//          included; what does not fit is an error with both numbers; a dry run has the accounts of a real one.
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/device/recorder.h"
#include "engine/tensor/ops/vision.h"
#include "tests/support/issued.h"
#include "tests/tensor/tensors.h"

namespace loom {
namespace {

using test::Doubles;
using ::testing::ElementsAre;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

// 0, 1, 2, ...
Tensor counting(const Shape& shape, DType dtype = DType::kF32) {
  Doubles values;
  for (std::int64_t i = 0; i < shape.numel(); ++i) values.push_back(static_cast<double>(i));
  return test::constant(values, shape, dtype);
}

Tensor fp32(const Shape& shape) { return Tensor::zeros(shape, DType::kF32); }

class VisionOperators : public ::testing::Test {
 protected:
  test::OneRank rank;
};

// y[n, f, i, j] = sum over c, y, x of weight[f, c, y, x] * pixels[n, c, 2 i + y, 3 j + x], written out.
TEST_F(VisionOperators, ALinearLayerOnPatchesIsTheConvolution) {
  const Tensor pixels = test::constant(test::normals(2 * 3 * 4 * 6, 1), {2, 3, 4, 6});
  const Tensor weight = test::constant(test::normals(5 * 3 * 2 * 3, 2), {5, 3, 2, 3});
  const Doubles p = test::values(pixels), w = test::values(weight);
  const Doubles found = test::values(ops::linear(ops::unfold_patches(pixels, 2, 3), weight.view({5, 18})));
  std::size_t at = 0;
  for (std::size_t n = 0; n < 2; ++n) {
    for (std::size_t i = 0; i < 2; ++i) {
      for (std::size_t j = 0; j < 2; ++j) {
        for (std::size_t f = 0; f < 5; ++f) {
          double sum = 0;
          for (std::size_t c = 0; c < 3; ++c) {
            for (std::size_t y = 0; y < 2; ++y) {
              for (std::size_t x = 0; x < 3; ++x) {
                sum += w[((f * 3 + c) * 2 + y) * 3 + x] * p[((n * 3 + c) * 4 + 2 * i + y) * 6 + 3 * j + x];
              }
            }
          }
          ASSERT_NEAR(found[at++], sum, 1e-12);
        }
      }
    }
  }
}

// [1, 2, 4, 1] by 2: the squares {0, 1, 4, 5} and {2, 3, 6, 7}, the neighbour along dim 1 outermost.
TEST_F(VisionOperators, PixelShuffleMakesARowOfEverySquare) {
  const Tensor y = ops::pixel_shuffle(counting({1, 2, 4, 1}), 2);
  EXPECT_EQ(y.shape(), (Shape{1, 1, 2, 4}));
  EXPECT_THAT(test::values(y), ElementsAre(0, 1, 4, 5, 2, 3, 6, 7));
}

// The steps of the model's own code: view, permute(0, 2, 1, 3), view, permute(0, 2, 1, 3).
TEST_F(VisionOperators, PixelShuffleIsTheModelsTwoPermutations) {
  const Tensor x = counting({2, 4, 6, 3});
  Tensor steps = ops::swap_dims_1_2(x.view({2, 4, 3, 6}));
  steps = ops::swap_dims_1_2(steps.view({2, 3, 2, 12}));
  EXPECT_EQ(ops::pixel_shuffle(x, 2).shape(), steps.shape());
  EXPECT_EQ(test::values(ops::pixel_shuffle(x, 2)), test::values(steps));
}

// ((37 i) mod 23) / 8 - 1.25 + i / 64: exact in fp32.
Tensor grid(const Shape& shape, DType dtype = DType::kF32) {
  Doubles values;
  for (std::int64_t i = 0; i < shape.numel(); ++i) {
    values.push_back(static_cast<double>(i * 37 % 23) / 8 - 1.25 + static_cast<double>(i) / 64);
  }
  return test::constant(values, shape, dtype);
}

struct Resizing {
  const char* name;
  Shape from;
  std::int64_t height, width;
  Doubles resized, gradient;
};
void PrintTo(const Resizing& resizing, std::ostream* out) { *out << resizing.name; }

class ResizedGrids : public ::testing::TestWithParam<Resizing> {
 protected:
  test::OneRank rank;
};

// Figures of torch 2.11 in fp32: interpolate(grid, size, mode="bicubic"), and the gradient of sum(result * grid of its
// size).
INSTANTIATE_TEST_SUITE_P(
    VisionOperators, ResizedGrids,
    ::testing::Values(
        Resizing{"Larger",
                 {3, 3, 2},
                 4,
                 4,
                 {-1.43841553,  0.533569336,  -1.06631148,  1.266873,      -0.352121055, 0.435128868,  0.189464062,
                  -1.36225462,  0.0617675632, -0.350124985, 0.693281412,   0.383178741,  0.297197759,  0.661708713,
                  -0.841040015, 0.284738213,  0.56137085,   0.246511757,   1.1928848,    -0.130458683, 0.796801031,
                  0.148071274,  -0.341436684, 0.881375015,  -0.2996521,    1.8935045,    0.0724519119, 0.0961211324,
                  0.786642373,  -0.735623062, 1.3282274,    -0.00231933594},
                 {-1.45191884, 1.31557977, -0.812159419, 0.60412854, 1.12284243, -1.0096128, 2.31261778, 0.354459018,
                  -0.0111303702, 2.51615262, 0.276942849, -0.667975187, 2.2298162, -0.241266668, 1.04051375, 1.44356108,
                  -0.582524478, 2.18497372}},
        Resizing{"LowerAndWider",
                 {3, 3, 2},
                 2,
                 5,
                 {-0.83509481,  0.168385804,  -0.510543883, 0.647782087,  -0.115844727, 0.998413086, -0.127464026,
                  0.0937019512, -0.221270517, -0.719438493, 0.0240361858, 1.25068843,   0.348587036, 0.437547535,
                  0.743286133,  -0.467163086, 0.731666863,  -0.116531856, 0.637860537,  0.362864286},
                 {-1.34129, 0.944105506, 0.0550545901, -0.587618947, 1.44553769, -0.0472213887, -0.760456502,
                  0.859876752, 0.24025771, -0.215394452, 1.21538949, 0.157031298, -0.803878188, 1.4815172, 0.62268734,
                  -0.0199862123, 1.98294914, 0.490190387}},
        Resizing{
            "Smaller",
            {4, 4, 2},
            2,
            2,
            {-0.526245117, 0.815429688, 0.375854492, -0.174804688, 1.67272949, 0.133789062, -0.491088867, 0.850585938},
            {-0.3125,      0.12890625,    -0.343261719, 0.0981445312, -0.117675781, 0.323730469,   -0.1484375,
             0.29296875,   -0.374023438,  0.202148438,  -0.404785156, 0.171386719,  -0.179199219,  0.396972656,
             -0.209960938, 0.366210938,   0.0771484375, -0.334960938, 0.0463867188, -0.365722656,  0.271972656,
             -0.140136719, 0.241210938,   -0.170898438, 0.015625,     -0.26171875,  -0.0151367188, -0.292480469,
             0.210449219,  -0.0668945312, 0.1796875,    -0.09765625}}),
    [](const auto& info) { return info.param.name; });

// Relative to the largest figure; single figures are small differences of large products.
void expect_near(const Doubles& found, const Doubles& expected, double relative) {
  ASSERT_EQ(found.size(), expected.size());
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], relative * largest) << i;
}

TEST_P(ResizedGrids, AreThoseOfTorchsBicubicInterpolation) {
  const auto& [name, from, height, width, resized, gradient] = GetParam();
  const Tensor x = grid(from).set_requires_grad(true);
  const Tensor y = ops::resize_bicubic(x, height, width);
  EXPECT_EQ(y.shape(), (Shape{height, width, from[2]}));
  expect_near(test::values(y), resized, 1e-6);
  autograd::backward(test::sum(ops::mul(y, grid(y.shape()))));
  expect_near(test::grad(x), gradient, 1e-6);
}

TEST_P(ResizedGrids, AreSummedInTheirDtype) {
  const auto& [name, from, height, width, resized, gradient] = GetParam();
  expect_near(test::values(ops::resize_bicubic(grid(from, DType::kF64), height, width)), resized, 1e-6);
  expect_near(test::values(ops::resize_bicubic(grid(from, DType::kBF16), height, width)), resized, 1e-2);
}

TEST_F(VisionOperators, AGridOfItsOwnSizeStaysAsItIs) {
  EXPECT_EQ(test::values(ops::resize_bicubic(grid({3, 5, 2}), 3, 5)), test::values(grid({3, 5, 2})));
}

TEST_F(VisionOperators, RowsComeInTheGivenOrderInGroups) {
  EXPECT_THAT(test::values(ops::reorder_rows(counting({3, 2}), {2, 0, 1})), ElementsAre(4, 5, 0, 1, 2, 3));
  const Tensor grouped = ops::reorder_rows(counting({6, 1, 2}), {1, 2, 0}, 2);
  EXPECT_EQ(grouped.shape(), (Shape{6, 1, 2}));
  EXPECT_THAT(test::values(grouped), ElementsAre(4, 5, 6, 7, 8, 9, 10, 11, 0, 1, 2, 3));
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF64}) {
    EXPECT_THAT(test::values(ops::reorder_rows(counting({4}, dtype), {1, 0}, 2)), ElementsAre(2, 3, 0, 1))
        << name(dtype);
  }
}

TEST_F(VisionOperators, TheInverseOrderPutsRowsBack) {
  const Tensor x = counting({8, 3});
  EXPECT_EQ(test::values(ops::reorder_rows(ops::reorder_rows(x, {2, 0, 3, 1}, 2), {1, 3, 0, 2}, 2)), test::values(x));
}

TEST_F(VisionOperators, AReorderedRowsGradientIsItsOwn) {
  const Tensor x = test::leaf({1, 2, 3, 4, 5, 6}, {6, 1});
  const Tensor y = ops::reorder_rows(x, {2, 0, 1}, 2);
  autograd::backward(test::sum(ops::mul(y, test::constant({10, 20, 30, 40, 50, 60}, {6, 1}))));
  EXPECT_THAT(test::grad(x), ElementsAre(30, 40, 50, 60, 10, 20));
}

TEST_F(VisionOperators, ATokenStandsBeforeEverySequenceAndASliceTakesItAway) {
  const Tensor x = counting({2, 2, 2});
  const Tensor y = ops::prepend_token(test::constant({-1, -2}, {1, 1, 2}, DType::kF32), x);
  EXPECT_THAT(test::values(y), ElementsAre(-1, -2, 0, 1, 2, 3, -1, -2, 4, 5, 6, 7));
  EXPECT_EQ(test::values(ops::slice_sequence(y, 1, 2)), test::values(x));
}

TEST_F(VisionOperators, RowsAreScatteredInReadingOrderInEveryDtypeAndIdType) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    const Tensor x = counting({2, 2, 1}, dtype);
    const Tensor rows = test::constant({10, 20}, {1, 2, 1}, dtype);
    const Tensor ids = Tensor::host({2, 2}, DType::kI32);
    for (int i = 0; i < 4; ++i) ids.data<std::int32_t>()[i] = i == 1 || i == 2 ? 7 : 3;
    EXPECT_THAT(test::values(ops::masked_scatter(x, ids, 7, rows)), ElementsAre(0, 10, 20, 3)) << name(dtype);
  }
}

TEST_F(VisionOperators, AReplacedEmbeddingGetsNoGradient) {
  const Tensor x = test::leaf({1, 2, 3, 4}, {1, 4, 1});
  const Tensor rows = test::leaf({5}, {1, 1});
  const Tensor y = ops::masked_scatter(x, Tensor::from<std::int64_t>({0, 7, 0, 0}, {1, 4}), 7, rows);
  autograd::backward(test::sum(ops::mul(y, test::constant({10, 20, 30, 40}, {1, 4, 1}))));
  EXPECT_THAT(test::grad(x), ElementsAre(10, 0, 30, 40));
  EXPECT_THAT(test::grad(rows), ElementsAre(20));
}

TEST_F(VisionOperators, CountsThatDifferAreTheUsersErrorWithBothNumbers) {
  const Tensor ids = Tensor::from<std::int64_t>({7, 7, 7, 0}, {1, 4});
  EXPECT_THAT(
      [&] {
        ops::masked_scatter(fp32({1, 4, 2}), ids, 7, fp32({2, 2, 2}));
      },
      ThrowsMessage<ConfigError>(
          StrEq("image tokens and image features do not match: input_ids hold 3 tokens with id 7, the images give 4 "
                "features; write one image token for each feature of an image")));
}

TEST_F(VisionOperators, ShapesThatDoNotFitAreErrorsThatNameTheOperator) {
  const auto expect = [](const std::function<void()>& call, const std::string& text) {
    EXPECT_THAT(call, ThrowsMessage<ModelError>(StrEq("[rank 0] " + text)));
  };
  expect(
      [] {
        ops::unfold_patches(fp32({1, 3, 8, 9}), 4, 4);
      },
      "unfold_patches: pixels [1, 3, 8, 9] in patches of 4 x 4; pixels are [images, channels, height, width], in whole "
      "patches");
  expect(
      [] {
        ops::pixel_shuffle(fp32({1, 4, 3, 2}), 2);
      },
      "pixel_shuffle: [1, 4, 3, 2] by a factor of 2; dims 1 and 2 of 4 need to be multiples of it");
  const auto refused_order = [&](const Shape& shape, const std::vector<std::int64_t>& order, std::int64_t group) {
    expect([&] { ops::reorder_rows(fp32(shape), order, group); },
           fmt::format("reorder_rows: {} in {} groups of {} rows; the order is a permutation of all groups",
                       to_string(shape), order.size(), group));
  };
  refused_order({4, 2}, {0, 1, 2}, 1);  // a group is missing
  refused_order({4, 2}, {0, 1, 1}, 2);
  refused_order({4, 2}, {0, 0}, 2);
  refused_order({4, 2}, {0, 2}, 2);
  refused_order({4, 2}, {-1, 0}, 2);
  refused_order({5, 2}, {1, 0}, 2);
  expect(
      [] {
        ops::slice_sequence(fp32({1, 4, 2}), 2, 3);
      },
      "slice_sequence: positions [2, 5) of [1, 4, 2]; they need to lie within dim 1");
  expect(
      [] {
        ops::prepend_token(fp32({3}), fp32({1, 4, 2}));
      },
      "prepend_token: fp32 [3] before fp32 [1, 4, 2]; one token of the last of 3 dims is needed, in the same dtype");
  expect(
      [] {
        ops::masked_scatter(fp32({1, 4, 2}), test::ids({1, 2, 3}), 1, fp32({1, 2}));
      },
      "masked_scatter: fp32 [1, 4, 2] with ids [3] and rows fp32 [1, 2]; [batch, sequence, dim] with an id for each "
      "position and rows of dim are needed, in one dtype");
  expect(
      [] {
        ops::resize_bicubic(fp32({2, 2, 3}), 0, 2);
      },
      "resize_bicubic: [2, 2, 3] to 0 x 2; [height, width, dim] with at least one row and column is needed");
}

// [1, 2, 4, 2] fp32: 64 bytes are read and 64 written. Ids: 4 of 8 bytes.
TEST_F(VisionOperators, CostTheBytesTheyMove) {
  const device::Recorder recorder(rank.device());
  ops::pixel_shuffle(fp32({1, 2, 4, 2}), 2);
  ops::unfold_patches(fp32({1, 2, 4, 2}), 2, 2);
  ops::masked_scatter(fp32({1, 4, 2}), test::ids({1, 2, 3, 4}), 1, fp32({1, 2}));
  ops::reorder_rows(fp32({8, 2}), {1, 0}, 4);
  ops::resize_bicubic(fp32({2, 2, 4}), 1, 3);
  std::vector<std::string> costs;
  for (const test::Issued& entry : test::issued(recorder.recording())) {
    if (entry.name == "fill") continue;
    costs.push_back(fmt::format("{} {} {}", entry.name, entry.cost.read_bytes, entry.cost.written_bytes));
  }
  EXPECT_THAT(costs, ElementsAre("pixel_shuffle 64 64", "unfold_patches 64 64", "masked_scatter 72 32",
                                 "reorder_rows 64 64", "resize_bicubic 64 48"));
}

TEST(VisionDryRun, HasTheAccountsOfARealRun) {
  std::vector<device::MemStats> found;
  for (const bool dry : {false, true}) {
    test::OneRank rank({.dry_run = dry});
    const Tensor pixels = Tensor::zeros({2, 3, 8, 8}, DType::kF32).set_requires_grad(true);
    const Tensor token = Tensor::zeros({48}, DType::kF32).set_requires_grad(true);
    const Tensor text = Tensor::zeros({2, 1, 192}, DType::kF32).set_requires_grad(true);
    Tensor h = ops::prepend_token(token, ops::unfold_patches(pixels, 4, 4));
    h = ops::reshape(ops::slice_sequence(h, 1, 4), {2, 2, 2, 48});
    h = ops::reorder_rows(h, {1, 0});
    ops::resize_bicubic(ops::reshape(h, {4, 2, 48}), 3, 3);
    const Tensor ids = Tensor::zeros({2, 1}, DType::kI64);  // in a dry run nobody counts them
    h = ops::masked_scatter(text, ids, dry ? 1 : 0, ops::reshape(ops::pixel_shuffle(h, 2), {1, 2, 192}));
    found.push_back(rank.stats());
  }
  EXPECT_EQ(found[0].peak_bytes, found[1].peak_bytes);
  EXPECT_EQ(found[0].total_bytes, found[1].total_bytes);
}

}  // namespace
}  // namespace loom
