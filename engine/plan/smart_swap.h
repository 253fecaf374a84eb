// Smart swap: the saved tensors that move to the host so that a step fits a device. A choice before the first step,
// from plans of the same job; shapes and control flow are assumed to be the same in every step.
//
// Candidates  in a planned step, the tensors that blocks save (offload/activation_swap.h, kChosen), except the last
//             block's. A tensor idles from when the compute stream has saved it until backward reaches it; of
//             several micro-batches, the shortest time counts. Both its copies must fit into it.
// Choice      the largest bytes x idle time first, ties in the order of the blocks and of their tensors: the shortest
//             such list with which a planned step runs within the budget. Every trial is a plan of the whole step, with
//             the copies' streams, waits and memory.
// Budget      the allocator's limit.
// Bits        swapped tensors come back unchanged.
// Errors      ConfigError if all candidates are not enough, with the minimum that a step needs.
// Same        the same job, profile and budget give the same choice, every time and on every rank.
// Threads     the calling thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/plan/planner.h"
#include "offload/activation_swap.h"

namespace loom::plan {

struct SwapChoice {
  std::string block;
  std::int64_t ordinal = 0;  // of the block's tensors
  std::string what;          // the tensor's name
  std::int64_t bytes = 0;
  std::int64_t idle_ns = 0;
};

struct SmartSwap {
  std::int64_t budget_bytes = 0;
  std::int64_t unswapped_bytes = 0;  // peak of a step's segments without swap
  std::int64_t swapped_bytes = 0;    // and with it
  std::int64_t candidates = 0;
  std::vector<SwapChoice> chosen;     // in the order of the choice; empty if the step fits without swap
  std::vector<SwapEstimate> exposed;  // by block, of the step with this choice

  // For TrainSections::smart_swap_chosen: blocks in order, their ordinals ascending.
  std::vector<offload::ChosenTensors> tensors() const;
};

// The limit that a step must fit: --smart-swap-device-size if given, else capacity_of().
std::int64_t swap_budget(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks,
                         const virtual_time::HardwareProfile& profile);

SmartSwap choose_swaps(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks,
                       const virtual_time::HardwareProfile& profile, std::int64_t budget_bytes);

// A table of the blocks: tensors, bytes, shortest idle time, exposed time.
std::string to_text(const SmartSwap& swap);
nlohmann::ordered_json to_json(const SmartSwap& swap);

}  // namespace loom::plan
