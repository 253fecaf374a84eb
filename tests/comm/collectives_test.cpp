// Promise: thread ranks get the results every ProcessGroup owes (conformance.h), whatever their number.
// World:   1, 2, 3, 4, 5, 6 and 16 ranks as threads, on however few cores.

#include <cstring>
#include <gtest/gtest.h>
#include <string>
#include <tuple>
#include <vector>

#include "engine/comm/peer_reduction.h"
#include "engine/core/error.h"
#include "engine/launch/run_ranks.h"
#include "tests/comm/conformance.h"

namespace loom::comm {
namespace {

class ThreadRanks : public testing::TestWithParam<std::tuple<int, conformance::Case>> {};

TEST_P(ThreadRanks, Keep) {
  const auto& [ranks, promise] = GetParam();
  launch::run_ranks(ranks, {.timeout = std::chrono::seconds(60)},
                    [&](RankContext&, World& world) { promise.run(world); });
}

const auto kRanks = testing::Values(1, 2, 3, 4, 5, 6, 16);

std::string name_of(const testing::TestParamInfo<ThreadRanks::ParamType>& info) {
  return std::string(std::get<1>(info.param).name) + "_on_" + std::to_string(std::get<0>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Promises, ThreadRanks, testing::Combine(kRanks, testing::ValuesIn(conformance::cases())),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Groups, ThreadRanks,
                         testing::Combine(kRanks, testing::ValuesIn(conformance::grouping_cases())), name_of);

// Element i of part p on `rank`; sums of them round differently in another order.
float value_of(int rank, std::size_t part, std::int64_t i) {
  return static_cast<float>((rank * 7919 + static_cast<int>(part) * 31 + i * 104729 + 13) % 2003 - 1001) / 37.0f;
}

// A part whose last rows are short or empty (zeros follow), one in full rows, one of a single element.
template <class T>
void expect_parts_have_the_bits_of_rows(ProcessGroup& group, DType dtype) {
  PeerReduction* const peers = PeerReduction::of(group);
  ASSERT_NE(peers, nullptr);
  const int size = group.size();
  const std::vector<ReducePart> shapes{
      {nullptr, 10, (10 + size - 1) / size + 1}, {nullptr, 1100 * size, 1100}, {nullptr, 1, 1}};
  std::vector<std::vector<T>> inputs;
  std::vector<ReducePart> parts = shapes;
  std::vector<float> rows;
  std::int64_t row_elems = 0;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    auto& input = inputs.emplace_back();
    for (std::int64_t i = 0; i < parts[p].elems; ++i) input.push_back(T(value_of(group.rank(), p, i)));
    parts[p].input = input.data();
    row_elems += parts[p].row_elems;
  }
  for (int rank = 0; rank < size; ++rank) {
    for (std::size_t p = 0; p < parts.size(); ++p) {
      for (std::int64_t i = rank * parts[p].row_elems; i < (rank + 1) * parts[p].row_elems; ++i) {
        rows.push_back(i < parts[p].elems ? static_cast<float>(inputs[p][static_cast<std::size_t>(i)]) : 0.0f);
      }
    }
  }
  std::vector<float> expected(static_cast<std::size_t>(row_elems));
  std::vector<float> actual(static_cast<std::size_t>(row_elems), 7.0f);
  group.reduce_scatter(Lane{2}, rows.data(), expected.data(), row_elems, DType::kF32, ReduceOp::avg(), "rows");
  peers->reduce_scatter_parts(Lane{2}, parts, dtype, actual.data(), DType::kF32, ReduceOp::avg(), "parts");
  EXPECT_EQ(std::memcmp(actual.data(), expected.data(), actual.size() * sizeof(float)), 0)
      << name(dtype) << " on " << size;
}

TEST(Parts, AreReducedWhereTheyAreWithTheBitsOfRows) {
  for (int ranks : {2, 3, 5}) {
    launch::run_ranks(ranks, {.timeout = std::chrono::seconds(60)}, [&](RankContext&, World& world) {
      const auto group = world.everyone();
      expect_parts_have_the_bits_of_rows<float>(*group, DType::kF32);
      expect_parts_have_the_bits_of_rows<bf16>(*group, DType::kBF16);
    });
  }
}

TEST(Parts, RanksThatCutThemDifferentlyAreTold) {
  std::string text;
  try {
    launch::run_ranks(2, {.timeout = std::chrono::seconds(60)}, [&](RankContext&, World& world) {
      const auto group = world.everyone();
      const std::vector<float> input(8);
      std::vector<float> output(4);
      const std::int64_t first = world.rank() == 0 ? 3 : 2;
      const std::vector<ReducePart> parts{{input.data(), 2 * first, first}, {input.data(), 2 * (4 - first), 4 - first}};
      PeerReduction::of(*group)->reduce_scatter_parts(Lane{2}, parts, DType::kF32, output.data(), DType::kF32,
                                                      ReduceOp::sum(), "layers.3");
    });
  } catch (const CommError& error) {
    text = error.what();
  }
  EXPECT_NE(text.find("reduce_scatter 'layers.3'"), std::string::npos) << text;
  EXPECT_NE(text.find("cut the 16 bytes into different parts; all members must give the same parts"), std::string::npos)
      << text;
}

}  // namespace
}  // namespace loom::comm
