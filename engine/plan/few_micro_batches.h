// A pipeline's step of many micro-batches, recorded with few of them. Private to engine/plan.
//
// Steady     between the first micro-batches and the last ones a rank repeats a part of its list: in 1F1B a forward and
//            a backward. A step with more micro-batches repeats it more often, and is the same otherwise.
// Recorded   a step with as many micro-batches that the part is there three times: the first is not steady yet, the
//            others are compared. It is then put in for the others.
// Exact      the entries, marks and allocated memory of the whole step, or nothing: the lists of the whole step have to
//            be those of the short one with the part repeated, and the part's two records have to be equal, but for the
//            numbers of micro-batches. GPipe and LoopedBFS repeat nothing.
// Reserved   is what the allocator needs in steps of few micro-batches: it may pack those of many a little otherwise.
// Threads    any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/device/recording.h"
#include "engine/train/inputs.h"

namespace loom::plan {

// Of a rank's list: the part that is repeated, by the marks of its actions (train::kActionMark).
struct SteadyPart {
  std::size_t begin = 0, end = 0;  // actions; the part of as many before it is equal
  std::int64_t times = 0;          // that it is put in
  std::int64_t micro_batches = 0;  // of it
};

struct FewMicroBatches {
  train::TrainSections arguments;
  train::TrainingInputs inputs;
  std::vector<SteadyPart> parts;  // by rank of the pipeline
};

// The short step of a job; nothing where it has no steady part, or few micro-batches anyway.
std::optional<FewMicroBatches> few_micro_batches(const train::TrainSections& arguments,
                                                 const train::PretrainCallbacks& callbacks,
                                                 const train::TrainingInputs& inputs, const train::EditConfig& edit);

// The whole step of the recording of the short one; nothing where the two records of the part differ.
std::optional<device::Recording> with_repeats(const device::Recording& recording, const SteadyPart& part);

}  // namespace loom::plan
