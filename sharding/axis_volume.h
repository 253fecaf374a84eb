// The bytes that a rank receives in a training step over each axis of ranks: predicted by formulas, and as recorded.
//
// Letters   a group of parameters: P bytes gathered, G bytes of gradients, N ranks shard and M have copies. E experts
//           that e ranks share, k of them a token, rows of h elements. A ring of r ranks and u of Ulysses; T tokens of
//           a rank in a micro-batch; a heads, g of keys and values (u where u is more), of d elements. x bytes each.
//
// A micro-batch; each rank of an axis sends as much:
//
//   dp_shard      forward P (N-1)/N, again in backward where forward freed the group (over `post_forward`, of k ranks:
//                 P (k-1)/k); G (N-1)/N reduced
//   dp_replicate  2 G/N (M-1)/M
//                 Without sync_each_batch G counts once a step. Without reshard_after_backward forward gathers a group
//                 once a step that has a backward.
//   efsdp         the same two, of experts: shards, or copies
//   ep            2 T k h x (e-1)/e, again in backward; with each forward 8 E (e-1) of counts
//   ulysses       T (2a + 2g) d x (u-1)/u, again in backward
//   ring          B = 2 T g d x: forward B (r-1), backward as much and r B of gradients, in fp32 at least. Gathered
//                 keys: forward B (r-1), backward as much.
//
//   tp            with H = T h x (t-1)/t: 4 H a block, 2 in forward and 2 in backward, and 2 H each for the embedding
//                 and the output layer's input; 3 numbers of fp32 a token for the loss, all-reduced. Once a step
//                 gradients that see a part of the work, as shards, all-reduced (over tp_copies: of key/value heads).
//
// Gathered tokens (moe_token_dispatcher_type allgather) over ep: (e-1) times all of a rank's tokens, choices, weights
// and results; backward tokens twice and weights. Recompute repeats what forward sends over ep, ulysses, ring and tp,
// not the gathers of parameters.
// Exact     for the tokens of StepShape and experts that get equal shares of them. Not predicted: gathers that are
//           freed unused, trained parameters that get no gradient, an optimizer's exchange (Muon), recompute
//           inside recompute, and one that ends before the results of gathered tokens are summed.
// Threads   the rank's host thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sharding/config/recomputed_module.h"

namespace loom::device {
struct Recording;
}
namespace loom::nn {
class Module;
}

namespace loom::sharding {

// A rank's part of a step.
struct StepShape {
  std::int64_t micro_batches = 1;
  std::int64_t rows = 1;        // of a micro-batch
  std::int64_t tokens = 1;      // of a row, those of all ranks that share it
  bool sync_each_batch = true;  // these two as the keys of fsdp2_config.yaml
  bool reshard_after_backward = true;
};

struct AxisVolume {
  std::string axis;
  std::int64_t ranks = 1;
  std::int64_t predicted_bytes = 0;
  std::int64_t received_bytes = 0;  // as recorded

  bool operator==(const AxisVolume&) const = default;
};

// Axes over which anything is predicted or recorded, in the order above. `model` is sharded; paths of `recomputed` are
// relative to it. `recording` is of one step.
std::vector<AxisVolume> volume_by_axis(nn::Module& model, std::span<const RecomputedModule> recomputed,
                                       const StepShape& shape, const device::Recording& recording);

// A line for each axis, and one that says what predictions leave out where they are not what was recorded. Empty for no
// axes.
std::string volume_table(std::span<const AxisVolume> volumes);

}  // namespace loom::sharding
