#include "engine/plan/plan_trace.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "engine/formats/torch/memory_snapshot.h"
#include "engine/observe/memory_snapshot.h"
#include "engine/observe/perfetto.h"

namespace loom::plan {

std::string to_perfetto(const StepEstimate& plan) {
  std::vector<observe::TracedRank> ranks;
  for (const PlannedRun& run : plan.runs) {
    ranks.push_back({.process = run.rank,
                     .name = fmt::format("rank {}: virtual time on {}", run.rank, plan.device),
                     .recording = &run.recording,
                     .times = run.times,
                     .memory = observe::at_virtual_time(run.recording, run.times)});
  }
  const nlohmann::ordered_json about = {{"model", plan.model},
                                        {"mode", plan.mode},
                                        {"device", plan.device},
                                        {"world_size", plan.world},
                                        {"micro_batch", plan.micro_batch},
                                        {"micro_batches", plan.micro_batches},
                                        {"seq_length", plan.seq_length},
                                        {"step_ns", plan.time.step_ns},
                                        {"clock", "virtual; peers are taken to be alike"}};
  return observe::perfetto_trace(ranks, {}, about);
}

std::string to_memory_snapshot(const StepEstimate& plan) {
  const PlannedRun& run = plan.run();
  return io::write_memory_snapshot(observe::memory_snapshot(run.recording, run.times, plan.memory.allocator.conf));
}

}  // namespace loom::plan
