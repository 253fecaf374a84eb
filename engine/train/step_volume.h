// The bytes of one recorded step of a trainer by axis, predicted and as recorded (sharding/axis_volume.h).
//
// Threads  the rank's host thread.
#pragma once

#include <vector>

#include "engine/train/trainer.h"
#include "sharding/axis_volume.h"

namespace loom::train {

// Of this rank; sequences count --seq-length tokens. Empty without FSDP2, and of a pipeline.
std::vector<sharding::AxisVolume> step_volume(Trainer& trainer, const TrainSections& arguments,
                                              const device::Recording& recording);

}  // namespace loom::train
