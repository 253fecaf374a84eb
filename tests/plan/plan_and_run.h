// A plan beside a real run of the same job: the same events, bytes and virtual time.
#pragma once

#include <algorithm>
#include <chrono>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "engine/device/recorder.h"
#include "engine/launch/run_ranks.h"
#include "engine/plan/planner.h"
#include "engine/train/inputs.h"
#include "engine/train/trainer.h"
#include "engine/virtual_time/resolve.h"
#include "tests/support/small_plan.h"

namespace loom::plan {

inline std::string line_of(const device::Recording& recording, const device::Entry& entry) {
  const device::Cost& c = entry.cost;
  return fmt::format("{} {} {} {} after {} moves {} flops {} reads {} writes {} links {} m{} n{} k{}",
                     static_cast<int>(entry.kind), entry.stream.place(), recording.text(entry.name),
                     recording.text(entry.subject), entry.other, entry.bytes, c.flops, c.read_bytes, c.written_bytes,
                     c.link_bytes, c.m, c.n, c.k);
}

inline std::vector<std::string> lines_of(const device::Recording& recording) {
  std::vector<std::string> lines;
  for (const auto& entry : recording.entries) lines.push_back(line_of(recording, entry));
  return lines;
}

struct RealRun {
  std::vector<device::Recording> recordings;
  device::MemStats memory;    // of rank 0
  device::MemoryPeaks peaks;  // of rank 0 in the step
};

// The fourth step of a real run: ranks as threads, real arithmetic.
inline RealRun run_fourth_step(const train::TrainSections& a, const train::PretrainCallbacks& calls) {
  const train::TrainingInputs inputs = train::read_inputs(a, calls);
  RealRun run;
  run.recordings.resize(kRanks);
  launch::run_ranks(kRanks, {std::chrono::seconds(60)}, [&](RankContext& context, comm::World& world) {
    device::DeviceOptions options;
    options.profile.matrix_workspace_bytes = profile().memory.matrix_workspace_bytes;
    device::Device& device = device::Device::install(context, options);
    context.slot<nn::KernelOptions>() = a.kernels.fused;
    train::Trainer trainer(a, calls, inputs, world);
    for (int step = 0; step < 3; ++step) trainer.step();
    const device::Recorder recorder(device, {.memory = true});
    trainer.step();
    const auto rank = static_cast<std::size_t>(context.rank());
    run.recordings[rank] = recorder.recording();
    if (rank != 0) return;
    run.memory = device.memory().stats();
    run.peaks = device::peaks_of(run.recordings[rank].memory);
  });
  return run;
}

inline void expect_same_events(const device::Recording& plan, const device::Recording& run) {
  const std::vector<std::string> planned = lines_of(plan), ran = lines_of(run);
  for (std::size_t i = 0; i < std::min(planned.size(), ran.size()); ++i) ASSERT_EQ(planned[i], ran[i]) << "event " << i;
  ASSERT_EQ(planned.size(), ran.size());
  EXPECT_EQ(device::peaks_of(plan.memory).total_bytes, device::peaks_of(run.memory).total_bytes);
}

inline std::int64_t end_ns(const RealRun& run) {
  std::vector<virtual_time::RankRecording> ranks;
  for (int rank = 0; rank < kRanks; ++rank) ranks.push_back({rank, &run.recordings[static_cast<std::size_t>(rank)]});
  return virtual_time::resolve(ranks, virtual_time::TimeModel(profile())).end_ns;
}

// A plan and a run: events, bytes and their peaks, virtual time.
inline void expect_same(const StepEstimate& plan, const RealRun& run) {
  expect_same_events(plan.run().recording, run.recordings[0]);
  EXPECT_EQ(plan.memory.peak_allocated_bytes, run.peaks.allocated_bytes);
  EXPECT_EQ(plan.memory.peak_reserved_bytes, run.peaks.reserved_bytes);
  EXPECT_EQ(plan.memory.reserved_bytes, run.memory.allocator.reserved_bytes);
  EXPECT_EQ(plan.memory.steady_allocated_bytes, run.memory.allocator.allocated_bytes);
  EXPECT_EQ(end_ns(run), plan.time.step_ns);
}

}  // namespace loom::plan
