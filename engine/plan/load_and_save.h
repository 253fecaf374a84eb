// Memory while a checkpoint is read and while one is written. Private to engine/plan.
//
// Device   what the run does there, on a dry device: the trainer is built, and the optimizer takes its state; to save,
//          gathered groups are resharded and split shards joined. Tensors are read and gathered on the host.
// Host     by formula, beside what a step keeps there. Load of a checkpoint: the optimizer's tensors, which are read
//          before they go to the device. Save of a model (hf), on the rank that writes: all its tensors, and twice the
//          largest parameter for its gather. Save of a checkpoint (torch_dcp): with --async-save a copy of this rank's
//          tensors. Weights of a Hugging Face folder are read in pieces, which do not count.
#pragma once

#include <cstdint>

#include "engine/device/recording.h"
#include "engine/plan/planner.h"
#include "engine/train/trainer.h"

namespace loom::plan {

// Of the memory of a recording.
PhaseMemory phase_memory(const char* phase, const device::Recording& recording);

// Does to the device what a save does.
void save_on_device(train::Trainer& trainer);
std::int64_t host_bytes_of_save(train::Trainer& trainer, const train::CheckpointOptions& options);

// Whether a load brings the state of the optimizer.
bool loads_optimizer(const train::CheckpointOptions& options);
// The state that a checkpoint of this trainer has, without its values.
nn::OptimizerState saved_state(train::Trainer& trainer);
// Does to the device what the load of a checkpoint does to a new trainer.
void load_on_device(train::Trainer& trainer, const nn::OptimizerState& state);
std::int64_t host_bytes_of_load(const nn::OptimizerState& state);

}  // namespace loom::plan
