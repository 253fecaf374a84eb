// TrainState: where a training run is, besides its weights and the optimizer's state. A value: taken between two steps,
// it puts another trainer of the same job in the same place.
//
// Draws    random numbers are functions of (seed, name, index) (core/rng.h), so the seed and the numbers here are the
//          whole position of every stream; there is no generator to save. `draws` is a rank's own.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/train/loss_scaler.h"

namespace loom::train {

struct TrainState {
  std::int64_t step = 0;              // iterations done, those without an update included
  std::int64_t samples_consumed = 0;  // of the training data, by all ranks; the next step begins at this sample
  std::uint64_t seed = 0;             // --seed of the run
  std::uint64_t draws = 0;            // numbers that this rank's operators have taken (dropout)
  std::int64_t samples_skipped = 0;   // of samples_consumed, those of --iterations-to-skip
  std::int64_t schedule_samples =
      0;  // of samples_consumed, those of updates that were made: the schedules are read here
  std::optional<LossScaleState> loss_scale = {};  // of a dynamic loss scale

  bool operator==(const TrainState&) const = default;
};

}  // namespace loom::train
