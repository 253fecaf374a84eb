// Promise: thread ranks get the results every ProcessGroup owes (conformance.h), whatever their number.
// World:   1, 2, 3, 4, 5, 6 and 16 ranks as threads, on however few cores.

#include <gtest/gtest.h>
#include <string>
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

const auto kRanks = testing::Values(1, 2, 3, 4, 5, 6, 16);

std::string name_of(const testing::TestParamInfo<ThreadRanks::ParamType>& info) {
  return std::string(std::get<1>(info.param).name) + "_on_" + std::to_string(std::get<0>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Promises, ThreadRanks, testing::Combine(kRanks, testing::ValuesIn(conformance::cases())),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Groups, ThreadRanks,
                         testing::Combine(kRanks, testing::ValuesIn(conformance::grouping_cases())), name_of);

}  // namespace
}  // namespace loom::comm
