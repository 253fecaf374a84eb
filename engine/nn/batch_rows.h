// BatchRows: the further arguments of a module's call that belong to rows of the batch, for calls of a few rows at a
// time (chunk_mbs).
//
// Attached by the author of the module, if such arguments are not just tensors with a row for each row of the batch, or
// are present in some calls only: tables of positions, ends of segments.
// Threads  the rank's host thread.
#pragma once

#include <cstdint>
#include <functional>

#include "engine/nn/value.h"

namespace loom::nn {

struct BatchRows {
  // Reduces `args`, a call with the whole batch, to the arguments of rows begin to begin + rows - 1. The arguments that
  // the user names to be cut are replaced afterwards.
  std::function<void(Args& args, std::int64_t begin, std::int64_t rows)> keep;
};

}  // namespace loom::nn
