// chunk_mbs: a module whose forward runs over a few rows of the batch at a time.
//
// What      the named arguments are cut along dim 0 into pieces of chunk_mbs rows, forward runs over one piece after
//           the other, and the results are joined along dim 0. All pieces run inside one call: a wrapper added
//           afterwards (fully_shard) gathers once for all of them. A module that is recomputed keeps the inputs of its
//           pieces, and backward recomputes one piece at a time: the memory of a small micro-batch with the gathers of
//           a large one. Arguments that are not named pass unchanged, except for the arguments that the module itself
//           assigns to rows (batch_rows.h).
// Order     recompute, then offload of activations, then this, then sharding: each encloses the ones before it.
// Bits      a row comes from products of fewer rows, which a matrix library may round otherwise; gradients of
//           parameters are summed piece by piece, which is another order of sums. Dropout draws the numbers of the
//           whole call (RngPieces in core/rng_state.h).
// Errors    ConfigError: a chunk below 1, the module has no forward, or is chunked already. ModelError at a call: a
//           named argument is not there or holds no tensor, tensors have different numbers of rows, a result holds a
//           number or tensors without rows of the piece.
// Threads   the rank's host thread.
// Source    MindSpeed-MM, features/communication/chunk_mbs.py (chunkmbs_plan), batch_dim 0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/nn/module.h"

namespace loom::nn {

struct ChunkMbsOptions {
  std::string path;            // the module's, for messages
  std::int64_t chunk_mbs = 1;  // rows of a piece; the last may have fewer
  std::vector<std::int64_t> chunk_arg_indexs{
      0};  // positional arguments that are cut, by place; the first gives the batch
  std::vector<std::string> chunk_kwarg_names = {};  // and named ones
};

// From now on calls of `module` run in pieces.
void chunk_mbs(Module& module, const ChunkMbsOptions& options);

}  // namespace loom::nn
