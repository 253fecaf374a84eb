#include "models/decoder/expert_exchange.h"

#include <numeric>

namespace loom::models {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

std::int64_t sum_of(const std::vector<std::int64_t>& values, std::int64_t begin, std::int64_t count) {
  const auto first = values.begin() + begin;
  return std::accumulate(first, first + count, std::int64_t{0});
}

// Part `i` of `rows` that `parts` share evenly.
std::int64_t even_part(std::int64_t rows, std::int64_t i, std::int64_t parts) {
  return (i + 1) * rows / parts - i * rows / parts;
}

}  // namespace

ExpertExchange::ExpertExchange(const comm::Axis& axis, std::int64_t experts, std::string path)
    : ranks_{axis.shared_group()}, experts_(experts), own_(experts / axis.size()), path_(std::move(path)) {}

std::vector<std::int64_t> ExpertExchange::own_counts(const Tensor& offsets, std::int64_t rows) const {
  std::vector<std::int64_t> counts;
  const auto* begins = static_cast<const std::int64_t*>(offsets.raw());
  for (std::int64_t e = 0; e < experts_; ++e) {
    counts.push_back(begins == nullptr ? even_part(rows, e, experts_) : begins[e + 1] - begins[e]);
  }
  return counts;
}

std::vector<std::int64_t> ExpertExchange::counts_of_all(const Tensor& offsets, std::int64_t rows) const {
  const std::vector<std::int64_t> own = own_counts(offsets, rows);
  const Tensor all = dist::all_gather(Tensor::from(own, {experts_}), 0, ranks_, path_);
  if (all.raw() != nullptr) return all.to_vector<std::int64_t>();
  std::vector<std::int64_t> even;
  for (int rank = 0; rank < ranks_.size(); ++rank) even.insert(even.end(), own.begin(), own.end());
  return even;
}

ExpertExchange::Dispatched ExpertExchange::dispatch(const Tensor& x, const ops::ExpertRows& rows) const {
  const std::vector<std::int64_t> counts = counts_of_all(rows.offsets, x.shape()[0]);
  Dispatched to;
  std::vector<std::int64_t> experts;  // of the rows that come, among this rank's
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    to.counts.sent.push_back(sum_of(counts, ranks_.rank() * experts_ + rank * own_, own_));
    to.counts.received.push_back(sum_of(counts, rank * experts_ + ranks_.rank() * own_, own_));
    for (std::int64_t e = 0; e < own_; ++e) {
      experts.insert(experts.end(), at(counts[at(rank * experts_ + ranks_.rank() * own_ + e)]), e);
    }
  }
  const Tensor received = dist::all_to_all(x, to.counts, ranks_, path_);
  const Tensor choices = Tensor::from(experts, {std::ssize(experts), 1});
  to.order = ops::sort_by_expert(choices, own_);
  to.rows = ops::gather_tokens(received, to.order);
  return to;
}

Tensor ExpertExchange::combine(const Tensor& y, const Dispatched& to) const {
  // One choice a row: the way back is the sum of one row.
  const Tensor ones = Tensor::full({y.shape()[0], 1}, y.dtype(), 1);
  const Tensor rows = ops::combine_tokens(y, ones, to.order);
  return dist::all_to_all(rows, {to.counts.received, to.counts.sent}, ranks_, path_);
}

}  // namespace loom::models
