#include "engine/plan/plan_trace.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

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

}  // namespace loom::plan
