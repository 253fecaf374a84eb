// Promise: in the forward of a micro-batch, the elements that dropout zeros go by row, token, feature and call, whoever
//          computes them: with other rows beside them, with a part of the tokens, flattened, padded further, in pieces
//          or again. The share is p, and rows and calls are independent.
// World:   one rank; rows of a run by their numbers.
#include <algorithm>
#include <cmath>
#include <functional>
#include <gmock/gmock.h>
#include <numeric>

#include "engine/core/rng_state.h"
#include "engine/tensor/ops/general.h"
#include "tests/tensor/tensors.h"

namespace loom {
namespace {

using test::Doubles;
using test::values;
using Parts = std::vector<RngRows::Parts>;
using Rows = std::vector<std::int64_t>;

constexpr std::uint64_t kKey = 5;

class DropoutOfRows : public ::testing::Test {
 protected:
  static RngRows rows_of(const Rows& rows, const Parts& parts = {}) { return {kKey, rows, parts}; }
  static Doubles dropped(const Shape& shape, double p = 0.5) {
    return values(ops::dropout(Tensor::from(Doubles(static_cast<std::size_t>(shape.numel()), 1), shape), p));
  }
  // The first call of a forward.
  static Doubles dropped(const RngRows& rows, const Shape& shape, double p = 0.5) {
    const RngForward forward(rows);
    return dropped(shape, p);
  }
  // Elements [begin, begin + count) of the row with this number.
  static void append(Doubles& to, const Doubles& from, std::size_t begin, std::size_t count) {
    to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(begin),
              from.begin() + static_cast<std::ptrdiff_t>(begin + count));
  }

  test::OneRank rank;
};

TEST_F(DropoutOfRows, GoByTheNumberOfTheRowWhateverIsBesideIt) {
  for (const Shape& of_row : {Shape{6, 5}, Shape{3, 6, 6}, Shape{7}, Shape{}}) {
    const auto shape = [&](std::int64_t rows) {
      std::vector<std::int64_t> sizes = of_row.sizes();
      sizes.insert(sizes.begin(), rows);
      return Shape(sizes);
    };
    const auto size = static_cast<std::size_t>(of_row.numel());
    const Doubles all = dropped(rows_of({10, 11, 12, 13}), shape(4));
    Doubles parts = dropped(rows_of({10, 11}), shape(2));
    append(parts, dropped(rows_of({12}), shape(1)), 0, size);
    append(parts, dropped(rows_of({13, 4}), shape(2)), 0, size);
    EXPECT_EQ(parts, all) << to_string(of_row);
  }
}

TEST_F(DropoutOfRows, AreTheSameWhereTokensAreFlattened) {
  const Doubles all = dropped(rows_of({3, 9}), {2, 6, 5});
  EXPECT_EQ(dropped(rows_of({3, 9}), {12, 5}), all);
  EXPECT_EQ(dropped(rows_of({3, 9}), {12}), dropped(rows_of({3, 9}), {2, 6, 1}));
}

TEST_F(DropoutOfRows, OfAPartOfTheTokensAreThoseOfTheWholeRow) {
  constexpr std::int64_t kFeatures = 3;
  const Doubles all = dropped(rows_of({3, 9}), {2, 8, kFeatures});
  const auto part = [&](const Rows& tokens) {
    Doubles found;
    for (std::size_t row = 0; row < 2; ++row) {
      for (const std::int64_t token : tokens) {
        append(found, all, static_cast<std::size_t>(kFeatures * token) + row * 8 * kFeatures, kFeatures);
      }
    }
    return found;
  };
  for (const bool flat : {false, true}) {
    const Shape shape = flat ? Shape{8, kFeatures} : Shape{2, 4, kFeatures};
    EXPECT_EQ(dropped(rows_of({3, 9}, {{0, 1}, {3, 1}}), shape), part({0, 1, 6, 7})) << "the ring's first rank of two";
    EXPECT_EQ(dropped(rows_of({3, 9}, {{1, 2}}), shape), part({2, 3, 4, 5})) << "its second";
    EXPECT_EQ(dropped(rows_of({3, 9}, {{1, 1}}), shape), part({4, 5, 6, 7})) << "Ulysses' second rank of two";
  }
  EXPECT_EQ(dropped(rows_of({3, 9}, {{1, 1}}), {2, 5}), dropped(rows_of({3, 9}), {2, 5})) << "no tokens";
}

TEST_F(DropoutOfRows, DoNotDependOnThePaddingBehindThem) {
  const auto weight = [](const Doubles& all, std::int64_t tokens, std::int64_t head, std::int64_t q, std::int64_t k) {
    return all[static_cast<std::size_t>((head * tokens + q) * tokens + k)];
  };
  const Doubles shorter = dropped(rows_of({3}), {1, 2, 5, 5}), longer = dropped(rows_of({3}), {1, 2, 9, 9});
  for (std::int64_t head = 0; head < 2; ++head) {
    for (std::int64_t q = 0; q < 5; ++q) {
      for (std::int64_t k = 0; k < 5; ++k) EXPECT_EQ(weight(shorter, 5, head, q, k), weight(longer, 9, head, q, k));
    }
  }
}

TEST_F(DropoutOfRows, InPiecesAreThoseOfTheWholeCall) {
  const auto two_calls = [](const Shape& shape, Doubles& to) {
    for (int call = 0; call < 2; ++call) {
      const Doubles found = dropped(shape);
      to.insert(to.end(), found.begin(), found.end());
    }
  };
  Doubles whole, pieces, behind_whole, behind_pieces;
  {
    const RngForward forward(rows_of({3, 4, 5}));
    dropped({3, 2});
    two_calls({3, 40}, whole);
    behind_whole = dropped({3, 40});
  }
  {
    const RngForward forward(rows_of({3, 4, 5}));
    dropped({3, 2});
    {
      RngPieces draws(3);
      Doubles first, second;
      draws.begin(0, 2);
      two_calls({2, 40}, first);
      draws.begin(2, 1);
      two_calls({1, 40}, second);
      for (std::size_t call = 0; call < 2; ++call) {
        append(pieces, first, call * 80, 80);
        append(pieces, second, call * 40, 40);
      }
    }
    behind_pieces = dropped({3, 40});
  }
  EXPECT_EQ(pieces, whole);
  EXPECT_EQ(behind_pieces, behind_whole);
}

TEST_F(DropoutOfRows, OfAReplayAreThoseOfItsForward) {
  RngState noted;
  Doubles first, second;
  {
    const RngForward forward(rows_of({3, 4}));
    dropped({2, 9});
    noted = RngState::current();
    first = dropped({2, 90});
    second = dropped({2, 90});
  }
  const RngForward another(rows_of({7, 8}));
  const Doubles other = dropped({2, 90});
  {
    const RngReplay replay(noted);
    EXPECT_EQ(dropped({2, 90}), first);
    EXPECT_EQ(dropped({2, 90}), second);
  }
  EXPECT_NE(other, first);
  EXPECT_EQ(RngState::current().calls, 1U);
}

// Each pair of masks agrees in half of its elements: within 5 standard deviations of 1000 / 2.
TEST_F(DropoutOfRows, AreIndependentInRowsAndCalls) {
  constexpr std::int64_t kRows = 8, kElems = 1000;
  std::vector<Doubles> masks;
  Doubles whole;
  {
    const RngForward forward(rows_of({0, 1, 2, 3, 4, 5, 6, 7}));
    for (int call = 0; call < 4; ++call) {
      const Doubles all = dropped({kRows, kElems / 10, 10});
      for (std::size_t row = 0; row < kRows; ++row) append(masks.emplace_back(), all, row * kElems, kElems);
    }
  }
  for (std::size_t a = 0; a < masks.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      const double same = std::inner_product(masks[a].begin(), masks[a].end(), masks[b].begin(), 0.0, std::plus{},
                                             [](double u, double v) { return u == v ? 1.0 : 0.0; });
      EXPECT_NEAR(same, kElems / 2.0, 5 * std::sqrt(kElems / 4.0)) << a << " " << b;
    }
  }
}

TEST_F(DropoutOfRows, ZeroTheirShareAndScaleTheRest) {
  for (const double p : {0.1, 0.5, 0.9}) {
    const Doubles y = dropped(rows_of({1, 2}), {2, 500, 100}, p);
    const auto zeros = static_cast<double>(std::ranges::count(y, 0.0));
    EXPECT_NEAR(zeros, 1e5 * p, 5 * std::sqrt(1e5 * p * (1 - p)));
    EXPECT_EQ(zeros + static_cast<double>(std::ranges::count(y, 1 / (1 - p))), 1e5);
  }
}

TEST_F(DropoutOfRows, OfTensorsThatAreNotOfTheRowsGoByTheFirstRowAndTheRank) {
  const Doubles images = dropped(rows_of({3, 4}), {5, 7, 2});
  EXPECT_EQ(dropped(rows_of({3, 4}), {5, 7, 2}), images);
  EXPECT_NE(dropped(rows_of({4, 5}), {5, 7, 2}), images);
  EXPECT_NE(dropped(rows_of({3, 4}, {{1, 1}}), {5, 7, 2}), images) << "another rank of the same rows";
  EXPECT_EQ(dropped(rows_of({3, 4}), {0, 7}).size(), 0U);
}

TEST_F(DropoutOfRows, TakeNothingFromTheNumbersOutsideAForward) {
  RngState::current() = {.key = 1, .next = 40};
  dropped(rows_of({3}), {1, 8});
  EXPECT_EQ(RngState::current().next, 40U);
  dropped({1, 8});
  EXPECT_EQ(RngState::current().next, 48U);
}

TEST_F(DropoutOfRows, AreTheSameInTheGradient) {
  const RngForward forward(rows_of({3, 4}));
  const Tensor x = test::leaf(Doubles(60, 1), {2, 6, 5});
  const Tensor y = ops::dropout(x, 0.3);
  autograd::backward(test::sum(y));
  EXPECT_EQ(test::grad(x), values(y));
}

TEST_F(DropoutOfRows, PartsOfTokensHeadsAndFeaturesAreThoseOfTheWhole) {
  const auto of_part = [&](const Shape& shape, const ops::DropoutPart& part) {
    const RngForward forward(rows_of({3}));
    return values(
        ops::dropout(Tensor::from(Doubles(static_cast<std::size_t>(shape.numel()), 1), shape), 0.5, true, part));
  };
  const Doubles tokens = dropped(rows_of({3}), {1, 6, 5});
  Doubles joined = of_part({1, 3, 5}, {.cut = 0, .cuts = 2});
  append(joined, of_part({1, 3, 5}, {.cut = 1, .cuts = 2}), 0, 15);
  EXPECT_EQ(joined, tokens);
  const Doubles heads = of_part({1, 4, 3, 3}, {.dim = 1});
  joined = of_part({1, 2, 3, 3}, {.dim = 1, .begin = 0});
  append(joined, of_part({1, 2, 3, 3}, {.dim = 1, .begin = 2}), 0, 18);
  EXPECT_EQ(joined, heads);
  const Doubles last = of_part({1, 6, 2}, {.dim = -1, .begin = 3});
  for (std::size_t token = 0; token < 6; ++token) {
    EXPECT_EQ(last[2 * token], tokens[5 * token + 3]);
    EXPECT_EQ(last[2 * token + 1], tokens[5 * token + 4]);
  }
}

TEST_F(DropoutOfRows, PartsOfARingsTokensAreCutOnceMore) {
  const auto of_part = [&](const RngRows& rows, const Shape& shape, const ops::DropoutPart& part) {
    const RngForward forward(rows);
    return values(
        ops::dropout(Tensor::from(Doubles(static_cast<std::size_t>(shape.numel()), 1), shape), 0.5, true, part));
  };
  const RngRows ring = rows_of({3}, {{0, 1}, {3, 1}});
  const Doubles own = dropped(ring, {1, 4, 5});
  Doubles joined = of_part(ring, {1, 2, 5}, {.cut = 0, .cuts = 2});
  append(joined, of_part(ring, {1, 2, 5}, {.cut = 1, .cuts = 2}), 0, 10);
  EXPECT_EQ(joined, own);
}

}  // namespace
}  // namespace loom
