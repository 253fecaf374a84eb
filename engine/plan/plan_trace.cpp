#include "engine/plan/plan_trace.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "engine/observe/perfetto.h"

namespace loom::plan {

std::string to_perfetto(const StepEstimate& plan) {
  observe::TracedRank rank;
  rank.name = fmt::format("rank 0: virtual time on {}", plan.device);
  rank.recording = &plan.run.recording;
  rank.times = plan.run.times;
  rank.memory = observe::at_virtual_time(plan.run.recording, plan.run.times);
  const nlohmann::ordered_json about = {{"model", plan.model},
                                        {"mode", plan.mode},
                                        {"device", plan.device},
                                        {"world_size", plan.world},
                                        {"micro_batch", plan.micro_batch},
                                        {"micro_batches", plan.micro_batches},
                                        {"seq_length", plan.seq_length},
                                        {"step_ns", plan.time.step_ns},
                                        {"clock", "virtual; peers are taken to be alike"}};
  return observe::perfetto_trace({&rank, 1}, {}, about);
}

}  // namespace loom::plan
