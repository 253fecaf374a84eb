// TrainState: where a training run is, besides its weights and the optimizer's state. A value: taken between two steps,
// it puts another trainer of the same job in the same place.
//
// Draws    random numbers are functions of (seed, name, index) (core/rng.h), so the seed and the numbers here are the
//          whole position of every stream; there is no generator to save. `draws` is a rank's own.
#pragma once

#include <cstdint>

namespace loom::train {

struct TrainState {
  std::int64_t step = 0;              // optimizer steps done; the schedule of the learning rate is read at this step
  std::int64_t samples_consumed = 0;  // of the training data, by all ranks; the next step begins at this sample
  std::uint64_t seed = 0;             // --seed of the run
  std::uint64_t draws = 0;            // numbers that this rank's operators have taken (dropout)

  bool operator==(const TrainState&) const = default;
};

}  // namespace loom::train
