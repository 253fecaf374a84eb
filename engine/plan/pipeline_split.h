// --pipeline-split auto: how many layers each stage of a pipeline has, by planned steps.
//
// Costs    from a plan of equal numbers (or as equal as they can be): the computing time of a layer is that of the rank
//          whose layers take least; what the first and the last rank take beyond their layers is embedding and output.
// Tried    equal numbers; the numbers with which the slowest stage takes least by these costs, one layer more and one
//          less on the last stage. Each is planned with twice as many micro-batches as ranks (or those of the step, if
//          fewer), in the memory of the device.
// Chosen   the fastest that fits; where none fits, the one that needs least memory. Never slower in plans than equal
//          numbers.
// Bits     no measurement: the same job and profile give the same split on every rank.
// Errors   ConfigError: a split that flags give, a schedule whose stages lie as a V, no pipeline.
// Threads  the calling thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/planner.h"

namespace loom::plan {

struct TriedSplit {
  std::vector<std::int64_t> layers;  // of each stage
  bool fits = false;
  std::int64_t step_ns = 0;
  std::int64_t peak_reserved_bytes = 0;  // of the rank with the most
};

struct ChosenSplit {
  std::vector<TriedSplit> tried;
  std::size_t chosen = 0;

  // For --pipeline-model-parallel-layout: "Ett|ttt|tL".
  std::string layout() const;
};

// Nothing where the job does not ask for it.
std::optional<ChosenSplit> choose_split(const train::TrainSections& arguments,
                                        const train::PretrainCallbacks& callbacks,
                                        const virtual_time::HardwareProfile& profile);

// Puts it in the place of the flag.
void apply(const ChosenSplit& split, train::PipelineParallel& options);

// A line for each that was tried.
std::string to_text(const ChosenSplit& split);
nlohmann::ordered_json to_json(const ChosenSplit& split);

}  // namespace loom::plan
