// Promise: a plan of attention whose sequences ranks share issues what the run issues, event for event; volumes are
//          those of the specification's formulas; the ring's exchanges pass beside the attention; a rank that fails
//          in the ring ends all ranks with the first cause.
// World:   2 ranks as threads; rank 0 and 1 of a simulated world of 2, dry; the tiny profile.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/comm/mesh.h"
#include "engine/comm/simulated/simulated.h"
#include "engine/core/error.h"
#include "engine/dist/context_attention.h"
#include "engine/virtual_time/resolve.h"
#include "engine/virtual_time/time_model.h"
#include "tests/dist/dist_ranks.h"
#include "tests/support/files.h"
#include "tests/support/tiny_profile.h"
#include "tests/tensor/tensors.h"

namespace loom::dist {
namespace {

using testing::HasSubstr;

constexpr int kRanks = 2;
constexpr std::int64_t kRows = 1, kTokens = 64, kHeads = 4, kKvHeads = 2, kDim = 8;
constexpr std::int64_t kElement = 4;  // fp32

Tensor whole(const Tensor& q, const Tensor& k, const Tensor& v, double scale, const ops::SegmentEnds& ends) {
  return ends ? ops::segment_attention(q, k, v, scale, ends) : ops::attention(q, k, v, scale);
}

enum class Algorithm { kUlysses, kRing, kRegathered, kGathered };
constexpr Algorithm kAll[] = {Algorithm::kUlysses, Algorithm::kRing, Algorithm::kRegathered, Algorithm::kGathered};

// Attention forward and backward on half of the tokens.
void step(comm::World& world, Algorithm algorithm) {
  const bool ulysses = algorithm == Algorithm::kUlysses;
  const auto mesh =
      comm::DeviceMesh::create(world, {{"ring", ulysses ? 1 : kRanks}, {"ulysses", ulysses ? kRanks : 1}});
  RingKeys keys = RingKeys::kPassed;
  if (algorithm == Algorithm::kRegathered) keys = RingKeys::kRegathered;
  if (algorithm == Algorithm::kGathered) keys = RingKeys::kGathered;
  const Context context = context_of(mesh, keys);
  const auto input = [&](std::int64_t heads) {
    const Tensor x = Tensor::zeros({kRows, kTokens / kRanks, heads, kDim}, DType::kF32);
    x.set_requires_grad(true);
    return x;
  };
  const Tensor q = input(kHeads), k = input(kKvHeads), v = input(kKvHeads);
  autograd::backward(test::sum(context_attention(q, k, v, 1, {}, context, whole, "layer")));
}

std::vector<device::Recording> ran(Algorithm algorithm) {
  std::vector<device::Recording> recordings(kRanks);
  test::run_dist(kRanks, [&](const Channel&, comm::World& world) {
    const device::Recorder recorder(device::Device::current());
    step(world, algorithm);
    recordings[static_cast<std::size_t>(world.rank())] = recorder.recording();
  });
  return recordings;
}

device::Recording planned(int rank, Algorithm algorithm) {
  RankContext context(rank, kRanks);
  const RankScope scope(context);
  device::Device& device = device::Device::install(context, {.dry_run = true});
  const auto world = comm::make_simulated_world(rank, kRanks);
  const device::Recorder recorder(device);
  step(*world, algorithm);
  return recorder.recording();
}

// Elements that a rank receives.
std::int64_t received(const device::Recording& recording) {
  std::int64_t bytes = 0;
  for (const device::Entry& e : recording.entries) {
    if (e.kind == device::EntryKind::kCollective) bytes += e.cost.link_bytes;
  }
  return bytes / kElement;
}

TEST(APlanOfSharedSequences, IssuesWhatTheRunIssues) {
  for (const Algorithm algorithm : kAll) {
    const std::vector<device::Recording> run = ran(algorithm);
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(test::events_of(planned(rank, algorithm)), test::events_of(run[static_cast<std::size_t>(rank)]))
          << static_cast<int>(algorithm) << ", rank " << rank;
    }
  }
}

TEST(VolumesOfSharedSequences, FollowTheirFormulas) {
  const std::int64_t q = kRows * kTokens * kHeads * kDim, kv = kRows * kTokens * kKvHeads * kDim, r = kRanks;
  // Forward and backward: (2 q + 2 kv) / u (u - 1) / u each.
  EXPECT_EQ(received(planned(0, Algorithm::kUlysses)), 2 * (2 * q + 2 * kv) / r * (r - 1) / r);
  // 2 kv / r (r - 1) forward and backward, and r times the gradients.
  EXPECT_EQ(received(planned(0, Algorithm::kRing)), 2 * (2 * kv / r * (r - 1)) + 2 * kv / r * r);
  EXPECT_EQ(received(planned(0, Algorithm::kRegathered)), 2 * (2 * kv * (r - 1) / r) + 2 * kv / r * r);
  EXPECT_EQ(received(planned(0, Algorithm::kGathered)), 2 * (2 * kv * (r - 1) / r));
}

TEST(ARing, PassesKeysBesideTheAttention) {
  const std::vector<device::Recording> run = ran(Algorithm::kRing);
  const std::vector<virtual_time::RankRecording> ranks{{0, run.data()}, {1, run.data() + 1}};
  const virtual_time::VirtualTimes times = virtual_time::resolve(ranks, virtual_time::TimeModel(test::tiny_profile()));
  std::optional<virtual_time::EntryTime> exchange, attention;
  for (std::size_t i = 0; i < run[0].entries.size(); ++i) {
    const std::string& name = run[0].text(run[0].entries[i].name);
    if (name == "send_recv" && !exchange) exchange = times.ranks[0].entries[i];
    if (name == "attention" && !attention) attention = times.ranks[0].entries[i];
  }
  ASSERT_TRUE(exchange && attention);
  EXPECT_EQ(exchange->end - exchange->start, 2 * kTokens / kRanks * kKvHeads * kDim * kElement);  // a byte a ns
  EXPECT_LT(exchange->start, attention->end);
  EXPECT_LT(attention->start, exchange->end);
}

TEST(ARankThatFailsInTheRing, EndsAllWithItsCause) {
  const auto fails = [&](Algorithm algorithm) {
    return test::message_of<Error>([&] {
      test::run_dist(kRanks, [&](const Channel&, comm::World& world) {
        if (world.rank() == 1) raise<DeviceError>("no room");
        step(world, algorithm);
      });
    });
  };
  for (const Algorithm algorithm : kAll) EXPECT_THAT(fails(algorithm), HasSubstr("[rank 1] no room"));
}

}  // namespace
}  // namespace loom::dist
