#include "models/decoder/expert_exchange.h"

#include <numeric>

#include "engine/tensor/ops.h"
#include "engine/tensor/ops/general.h"

namespace loom::models {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

std::int64_t sum_of(const std::vector<std::int64_t>& values, std::int64_t begin, std::int64_t count) {
  const auto first = values.begin() + begin;
  return std::accumulate(first, first + count, std::int64_t{0});
}

}  // namespace

std::vector<std::int64_t> ExpertExchange::counts_of_all(const Tensor& offsets, std::int64_t rows,
                                                        const ops::ExpertCapacity& capacity) const {
  const std::int64_t experts = routes_.experts();
  std::vector<std::int64_t> own;
  if (const auto* begins = static_cast<const std::int64_t*>(offsets.raw())) {
    for (std::int64_t e = 0; e < experts; ++e) own.push_back(begins[e + 1] - begins[e]);
  } else {
    own = routes_.planned(rows, capacity);
  }
  const Tensor all = dist::all_gather(Tensor::from(own, {experts}), 0, routes_.ranks(), routes_.path());
  if (all.raw() != nullptr) return all.to_vector<std::int64_t>();
  await_values(all);
  std::vector<std::int64_t> even;
  for (int rank = 0; rank < routes_.ranks().size(); ++rank) even.insert(even.end(), own.begin(), own.end());
  return even;
}

Tensor ExpertExchange::sent(const Tensor& x, const dist::RowCounts& counts, const std::function<void()>& beside) const {
  if (!beside) return dist::all_to_all(x, counts, routes_.ranks(), routes_.path());
  dist::PendingRows rows(x, counts, routes_.ranks(), routes_.path());
  beside();
  return rows.wait();
}

ExpertExchange::Dispatched ExpertExchange::dispatch(const Tensor& x, const ops::ExpertRows& rows,
                                                    const ops::ExpertCapacity& capacity,
                                                    const std::function<void()>& beside) const {
  const std::vector<std::int64_t> counts = counts_of_all(rows.offsets, x.shape()[0], capacity);
  const std::int64_t rank_here = routes_.ranks().rank(), all = routes_.experts(), own = routes_.own();
  Dispatched to;
  std::vector<std::int64_t> experts;  // of the rows that come, among this rank's
  for (int rank = 0; rank < routes_.ranks().size(); ++rank) {
    to.counts.sent.push_back(sum_of(counts, rank_here * all + rank * own, own));
    to.counts.received.push_back(sum_of(counts, rank * all + rank_here * own, own));
    for (std::int64_t e = 0; e < own; ++e) {
      experts.insert(experts.end(), at(counts[at(rank * all + rank_here * own + e)]), e);
    }
  }
  const std::int64_t used = sum_of(to.counts.sent, 0, std::ssize(to.counts.sent));
  to.unused = x.shape()[0] - used;
  const Tensor received = sent(to.unused == 0 ? x : ops::split(x, {used, to.unused}, 0)[0], to.counts, beside);
  const Tensor choices = Tensor::from(experts, {std::ssize(experts), 1});
  to.order = ops::sort_by_expert(choices, own);
  to.rows = ops::gather_tokens(received, to.order);
  return to;
}

Tensor ExpertExchange::combine(const Tensor& y, const Dispatched& to) const {
  // One choice a row: the way back is the sum of one row.
  const Tensor ones = Tensor::full({y.shape()[0], 1}, y.dtype(), 1);
  const Tensor rows = ops::combine_tokens(y, ones, to.order);
  const Tensor back = dist::all_to_all(rows, {to.counts.received, to.counts.sent}, routes_.ranks(), routes_.path());
  if (to.unused == 0) return back;
  return ops::concat({back, Tensor::full({to.unused, y.shape()[1]}, y.dtype(), 0)}, 0);
}

}  // namespace loom::models
