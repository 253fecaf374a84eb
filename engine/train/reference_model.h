// The reference model of a preference loss: a second model of the rank, frozen, in shards as the trained one. Its
// weights are those that training starts from, or those of --ref-model. The trainer makes it where
// PretrainCallbacks::has_reference_model says so; with --ref-logps-cache it is there only to compute what that file
// lacks, before the trained model has its bytes.
//
// Threads  the rank's host thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/comm/process_group.h"
#include "engine/data/step.h"
#include "engine/nn/module.h"
#include "engine/train/inputs.h"
#include "engine/train/parallel_dims.h"
#include "engine/train/reference_log_probs.h"

namespace loom::train {

// Collective.
std::shared_ptr<nn::Module> make_reference_model(const TrainSections& arguments, const PretrainCallbacks& callbacks,
                                                 const TrainingInputs& inputs, comm::World& world);

// What the rank's preference steps ask; null: none.
void set_reference_model(nn::Module* model);
void set_reference_log_probs(std::shared_ptr<const ReferenceLogProbs> values);

// Of the rows of a batch of pairs (preference_step.h): those of the rank's values where there are such and the batch
// has "numbers", else those of the rank's model. Zeros for a batch of shapes without values. ConfigError where there is
// neither.
std::vector<double> reference_log_probs(const data::Batch& batch);

// The values of --ref-logps-cache: of the file, where it is there and fits, else computed by a reference model that is
// made for it, and written. Returns what there is to say, a line. Collective.
std::string provide_reference_log_probs(const TrainSections& arguments, const PretrainCallbacks& callbacks,
                                        const TrainingInputs& inputs, const ParallelDims& dims, comm::World& world);

}  // namespace loom::train
