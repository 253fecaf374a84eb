// TrainState: the position of a training run, besides its weights and the optimizer's state. A value taken between two
// steps; it moves another trainer of the same job to the same position.
//
// Draws    random numbers are functions of the seed and of names, samples and places (core/rng.h, core/rng_state.h), so
//          the seed and the numbers here are the position of every stream; there is no generator to save.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/train/loss_scaler.h"

namespace loom::train {

struct TrainState {
  std::int64_t step = 0;              // iterations done, including iterations without an update
  std::int64_t samples_consumed = 0;  // of the training data, by all ranks; the next step begins at this sample
  std::uint64_t seed = 0;             // --seed of the run
  std::int64_t samples_skipped = 0;   // of samples_consumed, the samples of --iterations-to-skip
  std::int64_t schedule_samples =
      0;  // of samples_consumed, the samples of updates that were made: the position in the schedules
  std::optional<LossScaleState> loss_scale = {};  // of a dynamic loss scale

  bool operator==(const TrainState&) const = default;
};

}  // namespace loom::train
