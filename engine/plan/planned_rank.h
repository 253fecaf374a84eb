// PlannedRank: a rank of a job on a dry device in a simulated world, and its trainer. Private to engine/plan.
//
// Errors   OutOfMemoryError that says in which phase, at which group and, of a pipeline, on which rank.
// Threads  one at a time, which no other rank uses while this one lives.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "engine/comm/simulated/simulated.h"
#include "engine/core/error.h"
#include "engine/core/rank_context.h"
#include "engine/device/recorder.h"
#include "engine/plan/few_micro_batches.h"
#include "engine/plan/planner.h"
#include "engine/train/pipeline/stage_links.h"
#include "engine/train/trainer.h"

namespace loom::plan {

// What is planned.
struct PlannedJob {
  const train::TrainSections& arguments;
  const train::PretrainCallbacks& callbacks;
  const train::TrainingInputs& inputs;
  const virtual_time::HardwareProfile& profile;
  std::optional<std::int64_t> capacity_bytes;  // of the allocator; none: unlimited
  const FewMicroBatches* few = nullptr;        // what is recorded; null: the step itself
  bool traced = false;                         // the first step is recorded too, and both with the sites of all entries

  const train::TrainSections& recorded_arguments() const { return few == nullptr ? arguments : few->arguments; }
  const train::TrainingInputs& recorded_inputs() const { return few == nullptr ? inputs : few->inputs; }
};

class PlannedRank {
 public:
  // `hidden`: what comes from other stages.
  explicit PlannedRank(const PlannedJob& job, int rank = 0, const train::HiddenStates& hidden = {});

  // Makes the trainer, and records the step that is planned.
  device::Recording record();
  // Makes the trainer, and loads a checkpoint, with the state of its optimizer if given.
  PhaseMemory load(const nn::OptimizerState* state);
  // After record().
  PhaseMemory save();

  // After record().
  const PhaseMemory& built() const { return built_; }  // the making of the trainer, with the weights that it reads
  train::Trainer& trainer() { return *trainer_; }
  device::Device& device() { return device_; }
  // What goes to other stages.
  const train::HiddenStates& hidden() { return context_.slot<train::HiddenStates>(); }
  // Of a traced job.
  const device::Recording& first_step() const { return first_.value(); }
  // The groups over which it communicates.
  std::vector<comm::UsedGroup> used_groups(const device::Recording& recording) const;

 private:
  template <class Run>
  std::invoke_result_t<Run> saying_where(Run run);
  PhaseMemory build();
  bool swaps() const;
  device::Recording recorded_step();

  const PlannedJob& job_;
  const train::TrainSections& arguments_;
  const int rank_;
  RankContext context_;
  const RankScope scope_;
  device::Device& device_;
  const std::shared_ptr<comm::UsedGroups> used_;
  const std::unique_ptr<comm::World> world_;
  std::string phase_ = "the initialisation of the model";
  device::Recorder marks_;                   // of one step at a time, for errors
  std::optional<device::Recorder> origins_;  // of the allocator's blocks; none unless its events are recorded
  std::optional<train::Trainer> trainer_;
  std::optional<device::Recording> first_;  // of a traced job
  PhaseMemory built_;
};

}  // namespace loom::plan
