// Promise: thread ranks get the results every ProcessGroup owes (conformance.h), whatever their number.
// World:   1, 2, 3, 4, 5, 6 and 16 ranks as threads, on however few cores; 4 makes meshes of 1x4, 2x2, 4x1, 6 of 2x3
//          and 3x2.

#include <gtest/gtest.h>
#include <tuple>

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

INSTANTIATE_TEST_SUITE_P(Promises, ThreadRanks,
                         testing::Combine(testing::Values(1, 2, 3, 4, 5, 6, 16),
                                          testing::ValuesIn(conformance::cases())),
                         [](const auto& info) {
                           return std::string(std::get<1>(info.param).name) + "_on_" +
                                  std::to_string(std::get<0>(info.param));
                         });

}  // namespace
}  // namespace loom::comm
