// ExpertSlot: attached to a block of experts, and to the models that add up the losses of its router: how the experts
// are trained, and how many tokens they got.
//
// Counts   of the forwards in training since they were taken, of this rank; a forward that backward runs again does not
//          count. Plans have no tokens to count.
// Threads  the rank's host thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/nn/module.h"
#include "models/hub/expert_options.h"

namespace loom::models {

struct ExpertSlot {
  ExpertOptions options = {};
  std::vector<std::int64_t> tokens = {};  // of each expert: choices that were not dropped
  std::int64_t dropped = 0;               // choices beyond the capacity
};

// Trains the experts of `model` so. ConfigError where the model has no experts, or cannot do what is asked for.
void apply_expert_options(nn::Module& model, const ExpertOptions& options);

// The blocks with experts, in the order of the model, and their slots.
struct ExpertBlock {
  std::string path;
  nn::Module* module = nullptr;
  std::shared_ptr<ExpertSlot> slot;
};
std::vector<ExpertBlock> expert_blocks(nn::Module& model);

// After a step in which the experts of a block got `tokens`, over all ranks: corrects its router's choices.
void update_expert_bias(const ExpertBlock& block, const std::vector<double>& tokens);

}  // namespace loom::models
