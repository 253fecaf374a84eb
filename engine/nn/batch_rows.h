// BatchRows: what else of a module's call goes with the rows of its batch, for calls of a few rows at a time
// (chunk_mbs).
//
// Attached by who wrote the module, where such arguments are more than tensors with a row for each of the batch's, or
// are there in some calls only: tables of positions, ends of segments.
// Threads  the rank's host thread.
#pragma once

#include <cstdint>
#include <functional>

#include "engine/nn/value.h"

namespace loom::nn {

struct BatchRows {
  // Leaves in `args`, a call with the whole batch, what belongs to rows begin to begin + rows - 1. What the user names
  // to be cut is put in its place afterwards.
  std::function<void(Args& args, std::int64_t begin, std::int64_t rows)> keep;
};

}  // namespace loom::nn
