#include "models/decoder/expert_exchange.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/core/error.h"
#include "engine/core/rank_context.h"
#include "models/decoder/expert_load.h"

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

// Rows of a dry run for each expert: shared out by `shares`, of which the `own` heaviest neighbours are at `first`.
std::vector<std::int64_t> planned_rows(std::vector<double> shares, std::int64_t rows, std::int64_t first,
                                       std::int64_t own) {
  std::int64_t heaviest = 0;
  double most = -1;
  for (std::int64_t begin = 0; begin < std::ssize(shares); begin += own) {
    const double sum = std::accumulate(shares.begin() + begin, shares.begin() + begin + own, 0.0);
    if (sum > most) heaviest = begin, most = sum;
  }
  std::swap_ranges(shares.begin() + heaviest, shares.begin() + heaviest + own, shares.begin() + first);
  const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
  std::vector<std::int64_t> counts;
  double before = 0;
  for (const double share : shares) {
    const auto part = [&](double until) { return std::llround(static_cast<double>(rows) * until / all); };
    counts.push_back(part(before + share) - part(before));
    before += share;
  }
  return counts;
}

}  // namespace

ExpertExchange::ExpertExchange(const comm::Axis& axis, std::int64_t experts, std::string path)
    : ranks_{axis.shared_group()}, experts_(experts), own_(experts / axis.size()), path_(std::move(path)) {}

std::vector<std::int64_t> ExpertExchange::own_counts(const Tensor& offsets, std::int64_t rows) const {
  const auto* begins = static_cast<const std::int64_t*>(offsets.raw());
  const std::vector<double>& shares = RankContext::current().slot<ExpertLoad>().shares;
  if (begins == nullptr && !shares.empty()) {
    if (std::ssize(shares) != experts_) {
      config_error("--expert-load has {} number{}, and '{}' {} experts; write one for each expert", shares.size(),
                   shares.size() == 1 ? "" : "s", path_, experts_);
    }
    return planned_rows(shares, rows, ranks_.rank() * own_, own_);
  }
  std::vector<std::int64_t> counts;
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
