// Operators on tensors of several ranks. Each rank gives its part; gradients go the way back.
//
// Letters    N ranks of the channel, r this rank among them.
// Objective  the sum over the ranks of what each calls its loss (Loss::kOfEachRank). Backward is then the transpose of
//            forward: of a gather a sum that scatters, of an exchange the reverse exchange. With Loss::kOfAll the ranks
//            compute one loss together: the result is alike on all ranks and so is its gradient, which counts once.
// Order      all ranks of a channel issue the same operators in the same order. The tape runs backward in one order for
//            one forward, so this holds in backward where the graphs are alike: a rank that needs no gradient of an
//            operator whose peers do need it breaks it, and ends in the process group's error.
// Bits       sums in rank order, in fp32 (fp64 for fp64) and rounded once (process_group.h).
// Tags       name the work in errors and traces, the same on all ranks ("layers.3.experts").
// Work       one item of the compute stream with a collective's cost; the host waits for its peers. A channel of one
//            rank does nothing: the input is the result.
// Plan       every operator runs dry: shapes follow from the arguments, nothing moves.
// Dims       negative ones count from the last. Along dim 0 nothing is copied; along others ops::transpose copies.
// Errors     ModelError for shapes that do not fit; CommError from the process group.
// Threads    the rank's host thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/dist/channel.h"
#include "engine/tensor/tensor.h"

namespace loom::dist {

// Whose loss the gradient of a result is.
enum class Loss : std::uint8_t {
  kOfEachRank,  // of each rank's own: gradients of the ranks are summed
  kOfAll,       // of one that all ranks compute: the same gradient on all ranks
};

// Rows of an exchange: `sent` go to each rank, `received` come from it; N entries each.
struct RowCounts {
  std::vector<std::int64_t> sent;
  std::vector<std::int64_t> received;

  static RowCounts equal(std::int64_t rows, int ranks) {
    const std::vector<std::int64_t> all(static_cast<std::size_t>(ranks), rows);
    return {all, all};
  }
};

// x [sum of sent, ...] -> [sum of received, ...]: the first rows go to rank 0, the next ones to rank 1, ...; the result
// begins with the rows of rank 0. Rank p's sent[r] is this rank's received[p]: CommError where it is not.
Tensor all_to_all(const Tensor& x, const RowCounts& rows, const Channel& channel, const std::string& tag);

class ExchangeInFlight;

// The same on a stream of its own, beside what the compute stream is given before wait(): in backward the way back runs
// beside the backward of that. Nobody writes to x before.
class PendingRows {
 public:
  PendingRows(const Tensor& x, const RowCounts& rows, const Channel& channel, const std::string& tag);
  ~PendingRows();
  PendingRows(const PendingRows&) = delete;
  PendingRows& operator=(const PendingRows&) = delete;

  // all_to_all(x, ...). Once.
  Tensor wait();

 private:
  const RowCounts back_;
  const Channel channel_;
  const std::string tag_;
  Tensor rows_;  // on their way
  std::unique_ptr<ExchangeInFlight> there_;
  std::shared_ptr<std::unique_ptr<ExchangeInFlight>> way_back_;  // in backward
};

// Cuts `split_dim` into N equal parts, one a rank, and joins what arrives along `join_dim`, rank 0's first. Ulysses:
// [B,S/N,H,D] with split_dim 2 and join_dim 1 -> [B,S,H/N,D].
Tensor exchange_dims(const Tensor& x, int split_dim, int join_dim, const Channel& channel, const std::string& tag);

// All ranks' x joined along `dim`, rank 0's first; x is of one shape on all ranks.
Tensor all_gather(const Tensor& x, int dim, const Channel& channel, const std::string& tag,
                  Loss loss = Loss::kOfEachRank);

// Part r along `dim` of the sum over the ranks' x; N divides the dim.
Tensor reduce_scatter(const Tensor& x, int dim, const Channel& channel, const std::string& tag);

// The sum over the ranks' x.
Tensor all_reduce(const Tensor& x, const Channel& channel, const std::string& tag, Loss loss = Loss::kOfEachRank);

// Part r along `dim` of x, which all ranks have alike and whose parts they use; N divides the dim. Backward gathers.
Tensor own_part(const Tensor& x, int dim, const Channel& channel, const std::string& tag);

// x itself, which all ranks have alike and use apart; its gradient is the sum of theirs.
Tensor with_summed_gradient(const Tensor& x, const Channel& channel, const std::string& tag);

// x goes to rank r + distance and comes from rank r - distance, counted around the ring; of one shape on all ranks.
// Backward goes the other way.
Tensor shift(const Tensor& x, int distance, const Channel& channel, const std::string& tag);

}  // namespace loom::dist
