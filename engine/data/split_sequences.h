// Batches of ranks that share sequences (context parallelism): each rank gets its own tokens of the same samples.
//
// Split     "input_ids", "targets" and "position_ids", [B,S]; position_ids are added if there are none: a row's
//           positions. "actual_seq_len" stays: its ends are of whole rows. ModelError for anything else in a batch.
// Padding   rows whose length does not divide are longer by a few tokens at the end, which no other token sees and
//           whose targets are not scored. Each rank's tokens are then a multiple of `unit`: tensor parallelism cuts
//           them once more. Where ranks share no sequences, a batch that needs no padding stays as it is.
// Loss      of a rank's own tokens; the trainer weighs it by their number (DataLoaders::count_tokens).
// Threads   a loader is called on a rank's host thread: the tokens are that rank's.
#pragma once

#include <functional>

#include "engine/data/step.h"
#include "engine/dist/context_layout.h"

namespace loom::data {

// The tokens of `rank` of the ranks that share its sequences.
Batch split_batch(const Batch& batch, const dist::ContextDegrees& degrees, int rank, int unit = 1);

// Loaders of the current rank's tokens; `place`: a rank's place among those that share its sequences. Targets are
// counted if the loaders count nothing.
DataLoaders split_sequences(DataLoaders loaders, const dist::ContextDegrees& degrees,
                            std::function<int(int rank)> place, int unit = 1);

}  // namespace loom::data
