// Promise: a real run on rank threads and a plan (a dry run of rank 0 in a simulated world) of the same configuration
//          have the same events in the same order, the same bytes and the same virtual time.
// World:   2 to 4 ranks, real arithmetic and both executors against no arithmetic; the profile of the H200 and the
//          toy's.
#include <algorithm>
#include <gmock/gmock.h>

#include "engine/virtual_time/profile_file.h"
#include "tests/virtual_time/toy_step.h"

namespace loom::test {
namespace {

// An entry in words, with all that time and traffic come from.
std::vector<std::string> words(const device::Recording& recording) {
  std::vector<std::string> all;
  for (const device::Entry& e : recording.entries) {
    all.push_back(
        fmt::format("{} stream {} {} '{}' waits {} | {} bytes of {} ranks | {} flops, {} read, {} written, {} links",
                    static_cast<int>(e.kind), e.stream.place(), recording.text(e.name), recording.text(e.subject),
                    e.other, e.bytes, e.group < 0 ? 0 : recording.group(e.group).size(), e.cost.flops,
                    e.cost.read_bytes, e.cost.written_bytes, e.cost.link_bytes));
  }
  return all;
}

// Where two recordings part, or nothing.
std::string difference(const std::vector<std::string>& planned, const std::vector<std::string>& ran) {
  const auto [mine, theirs] = std::ranges::mismatch(planned, ran);
  if (mine == planned.end() && theirs == ran.end()) return "";
  return fmt::format("entry {}: planned {}, ran {}", mine - planned.begin(), mine == planned.end() ? "nothing" : *mine,
                     theirs == ran.end() ? "nothing" : *theirs);
}

std::vector<device::Recording> run(const ToyStep& step, device::ExecutorKind executor) {
  return of_each_rank(step.ranks,
                      [&](RankContext&, comm::World& world) {
                        const auto chain = toy_model(world, step);
                        nn::init_weights(*chain, kToySeed);
                        device::Recording recording = record_step(device::Device::current(), *chain);
                        device::Device::current().synchronize();
                        return recording;
                      },
                      {.executor = executor});
}

virtual_time::VirtualTimes resolve_all(const std::vector<device::Recording>& recordings,
                                       const virtual_time::TimeModel& model) {
  std::vector<virtual_time::RankRecording> ranks;
  for (std::size_t r = 0; r < recordings.size(); ++r) ranks.push_back({static_cast<int>(r), &recordings[r]});
  return virtual_time::resolve(ranks, model);
}

class PlanEqualsRun : public ::testing::TestWithParam<ToyStep> {};

TEST_P(PlanEqualsRun, EventForEventAndNsForNs) {
  std::vector<std::string> planned;
  std::vector<std::int64_t> planned_ns;
  const std::vector<virtual_time::HardwareProfile> profiles{
      toy_profile(30, 10), toy_profile(30, 70),
      virtual_time::load_profile(std::filesystem::path(LOOM_SOURCE_DIR) / "configs/devices/h200.yaml"),
      virtual_time::load_profile(std::filesystem::path(LOOM_SOURCE_DIR) / "configs/devices/ascend-910c.yaml")};
  {
    const PlannedStep plan(GetParam());
    planned = words(plan.recording);
    for (const virtual_time::HardwareProfile& profile : profiles) planned_ns.push_back(plan.times(profile).end_ns);
  }
  ASSERT_GT(planned.size(), 50u);
  for (const auto executor : {device::ExecutorKind::kInline, device::ExecutorKind::kThreaded}) {
    const std::vector<device::Recording> ran = run(GetParam(), executor);
    for (const device::Recording& recording : ran) EXPECT_EQ(difference(planned, words(recording)), "");
    for (std::size_t p = 0; p < profiles.size(); ++p) {
      const virtual_time::VirtualTimes times = resolve_all(ran, virtual_time::TimeModel(profiles[p]));
      for (const virtual_time::RankTimes& rank : times.ranks) {
        EXPECT_EQ(rank.end_ns, planned_ns[p]) << profiles[p].name << ", rank " << rank.rank;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Configurations, PlanEqualsRun,
    ::testing::Values(ToyStep{}, ToyStep{.forward_prefetch = 2, .backward_prefetch = 2},
                      ToyStep{.reshard_after_forward = false},
                      ToyStep{.ranks = 4, .shard_size = 4, .reshard_after_forward = 2},
                      ToyStep{.ranks = 4, .shard_size = 2}, ToyStep{.recompute = ToyStep::Recompute::kReentrant},
                      ToyStep{.ranks = 4, .shard_size = 4, .recompute = ToyStep::Recompute::kRecorded}));

}  // namespace
}  // namespace loom::test
