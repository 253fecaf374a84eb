// How the trainer makes its objective's reference model. Private to engine/train.
#pragma once

#include "engine/comm/process_group.h"
#include "engine/objective/reference_model.h"
#include "engine/train/inputs.h"

namespace loom::train {

// The arguments outlive it. Its weights are --ref-model, or the weights that training starts from.
objective::ReferenceSource reference_source(const TrainSections& arguments, const PretrainCallbacks& callbacks,
                                            const TrainingInputs& inputs, comm::World& world);

}  // namespace loom::train
