// weights_plan: a training step of a checkpoint of any architecture, from the headers of its safetensors files: exact
// memory of parameters, gradients and optimizer state, groups, and what a step communicates.
//
// How        the planner (planner.h) with a model that has the checkpoint's module tree and parameters, and uses each
//            once in its forward (models/stored): groups, shards, gathers and reductions are a training's.
// Unknown    activations and the time of the arithmetic: no code of the model is known. Neither counts as 0 anywhere.
// Order      of gathers: by name, not as the model's forward has it. Numbers and bytes do not depend on it.
// Refused    what changes the arithmetic of modules, which is not known: sizes of tensor, context, expert and pipeline
//            parallelism above 1, adapters, an objective other than the next token's.
// Errors     ConfigError, also those of resolving fsdp2_config.yaml against the tree.
// Threads    the calling thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/observe/step_groups.h"
#include "engine/plan/planner.h"

namespace loom::plan {

struct WeightsPlan {
  std::filesystem::path folder;
  std::int64_t parameters = 0;
  std::int64_t trained_parameters = 0;
  std::string mode;
  std::string device;
  int world = 1;
  std::int64_t micro_batches = 0;
  // Of a rank, of the one with most.
  std::int64_t shard_bytes = 0;
  std::int64_t gradient_bytes = 0;  // between backward and the optimizer
  std::int64_t optimizer_state_bytes = 0;
  std::int64_t host_bytes = 0;  // of these kinds, on the host (offload_to_cpu)
  std::int64_t capacity_bytes = 0;
  std::vector<observe::GroupSum> groups;  // what each gathers and reduces in a step
  std::vector<CommunicationEstimate> communication;
  std::vector<sharding::AxisVolume> volume;
  std::vector<std::string> warnings;

  std::int64_t static_bytes() const { return shard_bytes + gradient_bytes + optimizer_state_bytes; }
  bool fits() const { return static_bytes() <= capacity_bytes; }
};

// `arguments.model.model_weights` is the folder.
WeightsPlan plan_weights(const train::TrainSections& arguments, const virtual_time::HardwareProfile& profile);

std::string to_text(const WeightsPlan& plan);
nlohmann::ordered_json to_json(const WeightsPlan& plan);

}  // namespace loom::plan
