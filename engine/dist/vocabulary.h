// A vocabulary that ranks share: embedding, cross-entropy, and the cross-entropy of a linear layer's chunks.
//
// Letters    V ids, N ranks of the channel; a rank's part has R rows (of a weight) or columns (of logits), of the ids
//            [first, first + R).
// Parts      have each id once. R may differ between ranks, and be 0. A part may be longer than its ids: rows and
//            columns from V on are padding, which never counts and gets gradient zero.
// Alike      ids and targets are the same on all ranks. Losses have the same bits on all ranks.
// Objective  one loss that all ranks compute together (Loss::kOfAll of operators.h): a gradient counts once.
// Errors     ConfigError for an id or a target outside [0, V), as of the whole operators; ModelError for shapes that do
//            not fit; CommError from the process group.
// Rest       order of calls, tags, work, plans and threads: as in operators.h.
// Source     Megatron-LM, core/tensor_parallel (VocabParallelEmbedding, cross_entropy.py).
#pragma once

#include <cstdint>
#include <string>

#include "engine/dist/channel.h"
#include "engine/tensor/tensor.h"

namespace loom::dist {

// ids [...], weight [R, dim] -> [..., dim]: the row of an id that this rank has, zeros for others. The sum over the
// ranks (all_reduce, reduce_scatter) is ops::embedding of the whole table. The gradient has the bits of the table's
// rows there; that of the id `padding` gets none. No communication.
Tensor vocabulary_embedding(const Tensor& ids, const Tensor& weight, std::int64_t first, std::int64_t vocab,
                            std::int64_t padding = -1);

// logits [..., R], targets int32 or int64 [...] -> ops::cross_entropy of the joined logits: the mean over targets that
// are not `ignore_index`, 0 where there are none, in fp32 (fp64 for fp64). Backward is local.
//
// Cost     one pass over the logits and one in backward; three numbers a target are all-reduced, in fp32 (fp64): the
//          largest logit (`tag` largest), the sum of exp(logit - largest) and the target's logit (`tag` sums). They are
//          kept for backward, beside logits and targets.
Tensor vocabulary_cross_entropy(const Tensor& logits, const Tensor& targets, std::int64_t first, std::int64_t vocab,
                                const Channel& channel, const std::string& tag, std::int64_t ignore_index = -100);

// x [..., S, H], alike on all ranks, weight [R, H], targets [..., S] -> vocabulary_cross_entropy of x weight^T, from
// the logits of `chunk` tokens of each row at a time (ops::linear_cross_entropy, engine/tensor/ops/linear_loss.h). The
// gradient of x is that of this rank's columns: give with_summed_gradient(x). Two collectives a chunk, in forward.
Tensor vocabulary_linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets, std::int64_t chunk,
                                       std::int64_t first, std::int64_t vocab, const Channel& channel,
                                       const std::string& tag, std::int64_t ignore_index = -100);

}  // namespace loom::dist
