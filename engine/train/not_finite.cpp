#include "engine/train/not_finite.h"

#include "engine/core/error.h"

namespace loom::train {

void raise_not_finite(const NotFinite& value, Iteration iteration, const CheckpointOptions& options) {
  raise<Error>(
      "found {} in {}{}: iteration {} of {}; {}; look at the data, lower --lr or --clip-grad, or go on regardless with "
      "--no-check-for-nan-in-loss-and-grad",
      value.found, value.what, value.where, iteration.number, iteration.train_iters, what_is_kept(options));
}

std::string what_is_kept(const CheckpointOptions& checkpoint) {
  if (!checkpoint.save) return "nothing is saved";
  return fmt::format("nothing is saved, and {} keeps what it held", checkpoint.save->string());
}

}  // namespace loom::train
