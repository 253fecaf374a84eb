// Promise: boxes cover a tensor in order, elements are rounded as stated, names are mapped at their beginning only.
#include <bit>
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>

#include "engine/convert/convert.h"
#include "engine/convert/element_convert.h"
#include "engine/convert/tensor_compare.h"
#include "tests/convert/weight_folders.h"

namespace loom::checkpoint_test {
namespace {

using namespace checkpoint;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The flat places of all pieces' elements, one piece behind another, and the size of the largest.
std::pair<std::vector<std::int64_t>, std::int64_t> places(const Shape& whole, const Offset& offset, const Shape& box,
                                                          std::int64_t most) {
  std::vector<std::int64_t> all;
  std::int64_t largest = 0;
  for_each_piece(offset, box, most, [&](const Offset& at, const Shape& piece) {
    const BoxRuns runs(whole, at, piece);
    for (std::int64_t run = 0; run < runs.count(); ++run) {
      for (std::int64_t i = 0; i < runs.elems(); ++i) all.push_back(runs.begin(run) + i);
    }
    largest = std::max(largest, piece.numel());
  });
  return {all, largest};
}

TEST(Pieces, AreTheBoxInOrderWhateverTheirSize) {
  const Shape whole{3, 4, 5};
  const Offset offset{1, 1, 0};
  const Shape box{2, 3, 4};
  const auto once = places(whole, offset, box, 1000).first;
  ASSERT_EQ(once.size(), 24u);
  for (std::int64_t most = 1; most <= 30; ++most) {
    const auto [all, largest] = places(whole, offset, box, most);
    EXPECT_EQ(all, once) << most;
    EXPECT_LE(largest, most) << most;
  }
}

TEST(Pieces, OfAScalarAreOneAndOfAnEmptyBoxNone) {
  EXPECT_THAT(places({}, {}, {}, 1).first, ElementsAre(0));
  EXPECT_THAT(places({4, 0}, {0, 0}, {4, 0}, 8).first, IsEmpty());
}

TEST(Pieces, CutAWideRow) { EXPECT_EQ(places({1, 10}, {0, 0}, {1, 10}, 4).second, 4); }

template <class From, class To>
std::pair<std::vector<float>, std::int64_t> converted(const std::vector<From>& values) {
  std::vector<To> to(values.size());
  const auto overflowed = convert_elements(dtype_of<From>, std::as_bytes(std::span(values)), dtype_of<To>,
                                           std::as_writable_bytes(std::span(to)));
  std::vector<float> floats;
  for (const To& value : to) floats.push_back(static_cast<float>(value));
  return {floats, overflowed};
}

TEST(Elements, AreRoundedToNearestTiesToEven) {
  // bf16 has 8 bits: between 256 and 258 lies 257, a tie; 258 and 260 are even and odd neighbours of 259.
  EXPECT_THAT((converted<float, bf16>({256, 257, 257.5F, 259, -257})).first, ElementsAre(256, 256, 258, 260, -256));
  // fp16 has 11 bits.
  EXPECT_THAT((converted<float, f16>({2048, 2049, 2051, 0.1F})).first, ElementsAre(2048, 2048, 2052, 0.099975586F));
}

TEST(Elements, KeepNaNAndInfAndCountWhatBecomesInf) {
  const float inf = std::numeric_limits<float>::infinity();
  const auto [values, overflowed] = converted<float, f16>({65504, 65519, 65520, -1e30F, inf, NAN});
  EXPECT_THAT(values, ElementsAre(65504, 65504, inf, -inf, inf, ::testing::IsNan()));
  EXPECT_EQ(overflowed, 2);
  EXPECT_EQ((converted<double, float>({1e300, 1.0})).second, 1);
  EXPECT_EQ((converted<float, bf16>({std::numeric_limits<float>::max(), 1.0F})).second, 1);
}

TEST(Elements, AreTheSameOneByOneAndManyAtOnce) {
  std::vector<float> values;
  for (std::uint32_t i = 0; i < 4096; ++i) values.push_back(std::bit_cast<float>(i * 1048573u + 77u));
  const auto [all, overflowed] = converted<float, f16>(values);
  std::int64_t one_by_one = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto [one, its] = converted<float, f16>({values[i]});
    one_by_one += its;
    EXPECT_TRUE(one[0] == all[i] || (std::isnan(one[0]) && std::isnan(all[i]))) << values[i];
  }
  EXPECT_EQ(overflowed, one_by_one);
  EXPECT_GT(overflowed, 100);
}

TEST(Elements, OfSixteenBitsBecomeFp32Exactly) {
  EXPECT_THAT((converted<bf16, float>({bf16(1.5F), bf16(-3.0F)})).first, ElementsAre(1.5F, -3.0F));
  EXPECT_THAT((converted<f16, bf16>({f16(0.25F)})).first, ElementsAre(0.25F));
}

TEST(Names, GetThePrefixInFront) {
  const NameRules rules{.hf_prefix = "", .dcp_prefix = "ema."};
  EXPECT_EQ(rules.to_dcp("model.norm.weight"), "ema.model.norm.weight");
  EXPECT_EQ(rules.to_hf("ema.model.norm.weight"), "model.norm.weight");
  EXPECT_EQ(rules.to_hf("model.norm.weight"), std::nullopt);
}

TEST(Names, ChangeTheirPrefixAtTheBeginningOnly) {
  const NameRules rules{.hf_prefix = "model.", .dcp_prefix = "language_model."};
  EXPECT_EQ(rules.to_dcp("model.layers.0.model.x"), "language_model.layers.0.model.x");
  EXPECT_EQ(rules.to_dcp("vision.model.x"), "vision.model.x");
  EXPECT_EQ(rules.to_hf("language_model.layers.0.model.x"), "model.layers.0.model.x");
  EXPECT_EQ(rules.to_hf("vision.model.x"), "vision.model.x");
}

TEST(Names, ThatLostTheirPrefixAreNotGuessed) {
  EXPECT_EQ((NameRules{.hf_prefix = "model.", .dcp_prefix = ""}.to_hf("norm.weight")), std::nullopt);
}

Difference difference(const Named& a, const Named& b) {
  const fs::path folder = test::fresh_folder();
  write_weights(folder / "a.safetensors", {a});
  write_weights(folder / "b.safetensors", {b});
  const io::SafetensorsFile file_a(folder / "a.safetensors");
  const io::SafetensorsFile file_b(folder / "b.safetensors");
  return compare(tensors_of(file_a).tensors().front(), tensors_of(file_b).tensors().front());
}

TEST(Compare, FindsTheFirstAndTheLargestDifference) {
  Named b = counting("x", {2, 3});
  b.bytes = bytes_of<float>({0, 1, 2, 3.5F, 4, 3});
  const Difference found = difference(counting("x", {2, 3}), b);
  EXPECT_EQ(found.elements, 2);
  EXPECT_EQ(found.largest, 2.0);
  EXPECT_THAT(found.first, ElementsAre(1, 0));
  EXPECT_EQ(found.first_a, 3.0);
  EXPECT_EQ(found.first_b, 3.5);
}

TEST(Compare, TakesBitsOfOneDtypeAndValuesOfTwo) {
  const Named nan{"x", DType::kF32, {1}, bytes_of<float>({NAN})};
  EXPECT_EQ(difference(nan, nan).elements, 0);
  EXPECT_TRUE(std::isnan(difference(nan, counting("x", {1})).largest));
  const Named zero{"x", DType::kF32, {1}, bytes_of<float>({0.0F})};
  const Named minus_zero{"x", DType::kF32, {1}, bytes_of<float>({-0.0F})};
  EXPECT_EQ(difference(zero, minus_zero).elements, 1);
  const Named narrow{"x", DType::kBF16, {2}, bytes_of<bf16>({bf16(0.0F), bf16(1.0F)})};
  EXPECT_EQ(difference(counting("x", {2}), narrow).elements, 0);
}

}  // namespace
}  // namespace loom::checkpoint_test
