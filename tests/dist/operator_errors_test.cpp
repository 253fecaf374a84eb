// Promise: shapes that do not fit, and ranks that disagree, fail or stall in an operator, end all ranks with a text
//          that says where and why.
// World:   2 and 3 ranks as threads; a deadline of 200 ms where one must pass, of a minute where none may.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <latch>
#include <map>
#include <mutex>

#include "engine/core/error.h"
#include "engine/dist/operators.h"
#include "tests/dist/dist_ranks.h"
#include "tests/tensor/tensors.h"

namespace loom::dist {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

// What each rank's error says.
std::map<int, std::string> texts_of(int ranks, const std::function<void(const Channel&, comm::World&)>& main,
                                    const test::DistOptions& options = {}) {
  std::map<int, std::string> texts;
  std::mutex mutex;
  const auto noted = [&](const Channel& channel, comm::World& world) {
    try {
      main(channel, world);
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      texts[world.rank()] = error.what();
      throw;
    }
  };
  try {
    test::run_dist(ranks, noted, options);
  } catch (const Error&) {
  }
  return texts;
}

// What rank 0 of two is told of its shapes.
std::string refusal(const std::function<void(const Channel&)>& body) {
  return texts_of(2, [&](const Channel& channel, comm::World&) { body(channel); })[0];
}

TEST(Shapes, OfAnExchangeFitItsCounts) {
  EXPECT_THAT(refusal([](const Channel& channel) {
                all_to_all(Tensor::zeros({5, 2}, DType::kF32), {{2, 2}, {1, 1}}, channel, "experts");
              }),
              HasSubstr("all_to_all: sends [2, 2] rows of [5, 2]; the counts need the rows as their sum"));
  EXPECT_THAT(refusal([](const Channel& channel) {
                all_to_all(Tensor::zeros({5, 2}, DType::kF32), {{5}, {1, 1}}, channel, "experts");
              }),
              HasSubstr("all_to_all: 1 counts of rows to send and 2 to receive among 2 ranks; give one a rank each"));
  EXPECT_THAT(refusal([](const Channel& channel) {
                all_to_all(Tensor::zeros({5, 2}, DType::kF32), {{6, -1}, {1, 1}}, channel, "experts");
              }),
              HasSubstr("all_to_all: sends [6, -1] and receives [1, 1] rows; counts are 0 and more"));
}

TEST(Shapes, AreDividedByTheRanks) {
  EXPECT_THAT(refusal([](const Channel& channel) {
                reduce_scatter(Tensor::zeros({4, 3}, DType::kF32), 1, channel, "o");
              }),
              HasSubstr("reduce_scatter: dim 1 of [4, 3] among 2 ranks; use a size that 2 divides"));
  EXPECT_THAT(refusal([](const Channel& channel) {
                exchange_dims(Tensor::zeros({4, 3}, DType::kF32), 1, 0, channel, "q");
              }),
              HasSubstr("exchange_dims: dim 1 of [4, 3] among 2 ranks; use a size that 2 divides"));
  EXPECT_THAT(refusal([](const Channel& channel) {
                all_gather(Tensor::zeros({4, 3}, DType::kF32), 2, channel, "kv");
              }),
              HasSubstr("all_gather: dim 2 of [4, 3]; it has dims 0 to 1"));
}

// Rank 0 sends 3 rows of 8 bytes to rank 1, which expects 2.
TEST(RanksThatDisagree, AreToldBothCounts) {
  const auto texts = texts_of(2, [](const Channel& channel, comm::World& world) {
    const RowCounts rows = world.rank() == 0 ? RowCounts{{1, 3}, {1, 4}} : RowCounts{{4, 0}, {2, 0}};
    all_to_all(Tensor::zeros({4, 2}, DType::kF32), rows, channel, "layers.3.experts");
  });
  const std::string cause =
      " all_to_all 'layers.3.experts' in group 'ep' (ranks 0,1): rank 0 sends 24 bytes to rank 1, which expects 16; "
      "sender and receiver must give the same bytes";
  EXPECT_THAT(texts, ElementsAre(Pair(0, "[rank 0]" + cause), Pair(1, "[rank 1]" + cause)));
}

TEST(RanksThatDisagree, AreToldTheirOperators) {
  const auto texts = texts_of(2, [](const Channel& channel, comm::World& world) {
    const Tensor x = Tensor::zeros({4, 2}, DType::kF32);
    if (world.rank() == 0) {
      shift(x, 1, channel, "kv 1");
    } else {
      all_gather(x, 0, channel, "kv");
    }
  });
  EXPECT_THAT(texts.at(0), HasSubstr("rank 0 asks for send_recv 'kv 1' to rank 1 and from rank 1, rank 1 for "
                                     "all_gather 'kv'; all members must make the same calls in the same order"));
  EXPECT_THAT(texts.at(1), HasSubstr("[rank 1] all_gather 'kv' in group 'ep' (ranks 0,1): rank 0 failed first: "));
}

// Forward passes on all ranks; then rank 2 throws instead of going backward.
TEST(ARankThatDies, EndsTheBackwardOfItsPeers) {
  const auto texts = texts_of(3, [](const Channel& channel, comm::World& world) {
    const Tensor x = test::leaf(test::normals(6, 1), {3, 2});
    const Tensor y = all_to_all(x, RowCounts::equal(1, 3), channel, "layers.3.experts");
    if (world.rank() == 2) raise<DeviceError>("no room");
    autograd::backward(test::sum(y));
  });
  const std::string cause =
      " all_to_all 'layers.3.experts' in group 'ep' (ranks 0,1,2): rank 2 failed first: [rank 2] no room";
  EXPECT_EQ(texts.at(0), "[rank 0]" + cause);
  EXPECT_EQ(texts.at(1), "[rank 1]" + cause);
}

TEST(ARankThatStalls, IsNamedByTheRing) {
  std::latch given_up(1);
  const auto texts = texts_of(2,
                              [&](const Channel& channel, comm::World& world) {
                                const Tensor x = Tensor::zeros({4, 2}, DType::kF32);
                                shift(x, 1, channel, "kv 0");
                                if (world.rank() == 1) return given_up.wait();
                                try {
                                  shift(x, 1, channel, "kv 1");
                                } catch (...) {
                                  given_up.count_down();
                                  throw;
                                }
                              },
                              {.timeout = std::chrono::milliseconds(200)});
  EXPECT_THAT(texts, ElementsAre(Pair(0,
                                      "[rank 0] send_recv 'kv 1' to rank 1 and from rank 1 in group 'ep' (ranks 0,1): "
                                      "rank 1 did not come within 200 ms (it last entered send_recv 'kv 0' to rank 0 "
                                      "and from rank 0); raise --distributed-timeout-minutes or look at rank 1")));
}

}  // namespace
}  // namespace loom::dist
