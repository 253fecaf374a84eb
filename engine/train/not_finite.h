// The error that ends a run when a loss or gradient norm is NaN or Inf.
//
// Threads  safe from any number of threads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/train/checkpoint_options.h"

namespace loom::train {

// "NaN in grad norm, first in the gradient of 'head.bias' on rank 3".
struct NotFinite {
  std::string_view found;
  std::string_view what;
  std::string where = {};  // appended to the name
};
// One iteration, from 1, in a run of `train_iters`.
struct Iteration {
  std::int64_t number = 0;
  std::int64_t train_iters = 0;
};
// Throws Error, with the iteration, the effect on the files of --save, and the next step.
[[noreturn]] void raise_not_finite(const NotFinite& value, Iteration iteration, const CheckpointOptions& options);

// What is on disk after an error: "nothing is saved, and out keeps what it held".
std::string what_is_kept(const CheckpointOptions& checkpoint);

}  // namespace loom::train
