// Promise: a dry run of one rank issues what a run of all ranks issues, event for event, and no bytes; the bytes of
//          every operator and its virtual time follow the formulas.
// World:   2 ranks as threads; rank 0 of a simulated world of 2, dry; the tiny profile: a byte a ns in a node of two.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/comm/simulated/simulated.h"
#include "engine/dist/operators.h"
#include "engine/virtual_time/resolve.h"
#include "engine/virtual_time/time_model.h"
#include "tests/dist/dist_ranks.h"
#include "tests/support/tiny_profile.h"
#include "tests/tensor/tensors.h"

namespace loom::dist {
namespace {

using testing::ElementsAre;

// Rows [from][to]: rank 0 keeps 1 and sends 3, rank 1 keeps 2.
RowCounts rows_of(int rank) { return rank == 0 ? RowCounts{{1, 3}, {1, 0}} : RowCounts{{0, 2}, {3, 2}}; }

// Every operator once, forward and backward. Rows of 8 fp32: 32 bytes.
void step(const Channel& channel) {
  const RowCounts rows = rows_of(channel.rank());
  const std::int64_t sent = rows.sent[0] + rows.sent[1];
  const Tensor x = Tensor::zeros({sent, 8}, DType::kF32);
  x.set_requires_grad(true);
  const Tensor back =
      all_to_all(all_to_all(x, rows, channel, "dispatch"), {rows.received, rows.sent}, channel, "combine");
  const Tensor z = Tensor::zeros({4, 8}, DType::kF32);
  z.set_requires_grad(true);
  Tensor y = exchange_dims(z, 1, 0, channel, "q");                       // [8, 4]
  y = shift(y, 1, channel, "kv 0");                                      // 128 bytes
  y = reduce_scatter(all_gather(y, 1, channel, "kv"), 0, channel, "o");  // [8, 8], [4, 8]
  y = all_reduce(y, channel, "out");
  autograd::backward(ops::add(test::sum(back), test::sum(y)));
}

// "all_to_all dispatch 192 of 96"; other work by its name.
std::vector<std::string> events_of(const device::Recording& recording) {
  std::vector<std::string> events;
  for (const device::Entry& entry : recording.entries) {
    std::string event = recording.text(entry.name);
    if (entry.kind == device::EntryKind::kCollective) {
      event += fmt::format(" {} {}, receives {}", recording.text(entry.subject), entry.bytes, entry.cost.link_bytes);
    }
    events.push_back(std::move(event));
  }
  return events;
}

std::vector<std::string> collectives_of(const device::Recording& recording) {
  std::vector<std::string> collectives;
  const std::vector<std::string> events = events_of(recording);
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (recording.entries[i].kind == device::EntryKind::kCollective) collectives.push_back(events[i]);
  }
  return collectives;
}

std::vector<device::Recording> recordings_of_run() {
  std::vector<device::Recording> recordings(2);
  test::run_dist(2, [&](const Channel& channel, comm::World& world) {
    const device::Recorder recorder(device::Device::current());
    step(channel);
    recordings[static_cast<std::size_t>(world.rank())] = recorder.recording();
  });
  return recordings;
}

device::Recording planned(int rank) {
  RankContext context(rank, 2);
  const RankScope scope(context);
  device::Device& device = device::Device::install(context, {.dry_run = true});
  const auto world = comm::make_simulated_world(rank, 2);
  const device::Recorder recorder(device);
  step(Channel{world->everyone("ep")});
  return recorder.recording();
}

TEST(APlan, IssuesWhatTheRunIssues) {
  const std::vector<device::Recording> run = recordings_of_run();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(events_of(planned(rank)), events_of(run[static_cast<std::size_t>(rank)])) << "rank " << rank;
  }
}

// N / (N - 1) times the 3 rows that cross, in both directions; all of equal parts.
TEST(BytesOfOperators, FollowTheirFormulas) {
  EXPECT_THAT(collectives_of(planned(0)),
              ElementsAre("all_to_all dispatch 192, receives 0", "all_to_all combine 192, receives 96",
                          "all_to_all q 128, receives 64", "send_recv kv 0 128, receives 128",
                          "all_gather kv 256, receives 128", "reduce_scatter o 256, receives 128",
                          "all_reduce out 128, receives 128",
                          // backward
                          "all_reduce out 128, receives 128", "all_gather o 256, receives 128",
                          "reduce_scatter kv 256, receives 128", "send_recv kv 0 128, receives 128",
                          "all_to_all q 128, receives 64", "all_to_all combine 192, receives 0",
                          "all_to_all dispatch 192, receives 96"));
}

// A byte a ns: what crosses the link; an all-reduce of 128 bytes passes twice its half.
TEST(VirtualTimeOfOperators, IsExact) {
  const std::vector<device::Recording> run = recordings_of_run();
  const virtual_time::TimeModel model(test::tiny_profile());
  const std::vector<virtual_time::RankRecording> ranks{{0, run.data()}, {1, run.data() + 1}};
  const virtual_time::VirtualTimes times = virtual_time::resolve(ranks, model);
  for (std::size_t rank = 0; rank < run.size(); ++rank) {
    std::vector<std::int64_t> durations;
    for (std::size_t i = 0; i < run[rank].entries.size(); ++i) {
      if (run[rank].entries[i].kind != device::EntryKind::kCollective) continue;
      const virtual_time::EntryTime& time = times.ranks[rank].entries[i];
      durations.push_back(time.end - time.start);
    }
    EXPECT_THAT(durations, ElementsAre(96, 96, 64, 128, 128, 128, 128, 128, 128, 128, 128, 64, 96, 96)) << rank;
  }
}

}  // namespace
}  // namespace loom::dist
