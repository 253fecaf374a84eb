// Products beside the collective of their input or their result, slice by slice: linear layers that ranks share under
// sequence parallelism.
//
// Letters    t ranks; hidden states [B, L, K] of each rank, [B, t L, K] whole; n slices (token_slices.h).
// Colwise    the gather of slice i + 1 of the input runs beside the product of slice i. In backward the product of
//            slice i + 1 of the input's gradient runs beside the reduce-scatter of slice i.
// Rowwise    the product of slice i + 1 runs beside the reduce-scatter of slice i; in backward the other way.
// Exposed    of n equal slices the first gather, and the last reduce-scatter; in backward that has the product for the
//            weight's gradient beside it.
// Bits       those of all_gather(), ops::linear() and reduce_scatter() one after the other: rows of a product do not
//            depend on other rows, and a weight's gradient is one product over all rows.
// Copies     none: gathers write to their places in the whole, products to what a reduce-scatter takes.
// Streams    collectives are on the exchange stream, products on the compute stream.
// Kept       a rowwise product with its sum is not a result that a recompute keeps (autograd::ResultKeeper).
// Order      all ranks issue the same (operators.h).
// Errors     ModelError for shapes that do not fit; CommError from the process group.
// Threads    the rank's host thread.
// Source     MindSpeed's MC2 and CoC; torch's asynchronous tensor parallelism; Megatron-LM's linear layers.
#pragma once

#include <memory>
#include <string>

#include "engine/dist/channel.h"
#include "engine/tensor/ops/linear_rows.h"
#include "engine/tensor/tensor.h"

namespace loom::dist {

// The input of the colwise layers of one block, on its way to being whole. One a forward.
class GatheredInput {
 public:
  struct Options {
    int slices = 1;
    // Layers keep a rank's part for backward, which gathers it once more for all of them, beside the first product for
    // the input's gradient.
    bool gathers_again = false;
  };

  // Starts the gathers of x [B, L, K].
  GatheredInput(const Tensor& x, const Options& options, const Channel& channel, const std::string& tag);
  ~GatheredInput();
  GatheredInput(const GatheredInput&) = delete;
  GatheredInput& operator=(const GatheredInput&) = delete;

  // [B, t L, K], recorded as all_gather(). Before wait() operators refuse it, with a ModelError.
  const Tensor& whole() const;
  // All of it has arrived: anyone may read it.
  void wait();

  // Whether product() is for this input: for a copy, a cast or a view of it, it is not.
  bool is_input(const Tensor& x) const { return x.is_same(whole()); }
  // ops::linear(whole(), ...). The first one goes slice by slice unless wait() came before.
  Tensor product(const ops::LinearMatrix& matrix);

 private:
  class Gather;
  const std::shared_ptr<Gather> gather_;
};

// reduce_scatter(ops::linear(x, ...), 1, ...) of x [B, t L, K] in n slices.
Tensor product_and_sum(const Tensor& x, const ops::LinearMatrix& matrix, int slices, const Channel& channel,
                       const std::string& tag);

}  // namespace loom::dist
