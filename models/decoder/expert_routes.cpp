#include "models/decoder/expert_routes.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/core/error.h"
#include "engine/core/rank_context.h"
#include "engine/device/device.h"
#include "models/decoder/expert_load.h"

namespace loom::models {
namespace {

std::vector<std::int64_t> evenly(std::int64_t rows, std::int64_t parts) {
  std::vector<std::int64_t> counts;
  for (std::int64_t i = 0; i < parts; ++i) counts.push_back((i + 1) * rows / parts - i * rows / parts);
  return counts;
}

// Shared out by `shares`, of which the `own` heaviest neighbours are at `first`.
std::vector<std::int64_t> shared_out(std::vector<double> shares, std::int64_t rows, std::int64_t first,
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

std::vector<std::int64_t> ExpertRoutes::planned(std::int64_t rows, const ops::ExpertCapacity& capacity) const {
  if (capacity.padded) return std::vector<std::int64_t>(static_cast<std::size_t>(experts_), capacity.tokens);
  const std::vector<double>& shares = RankContext::current().slot<ExpertLoad>().shares;
  if (!shares.empty() && std::ssize(shares) != experts_) {
    config_error("--expert-load has {} number{}, and '{}' {} experts; write one for each expert", shares.size(),
                 shares.size() == 1 ? "" : "s", path_, experts_);
  }
  std::vector<std::int64_t> counts = shares.empty() ? evenly(rows, experts_) : shared_out(shares, rows, first(), own_);
  if (capacity.tokens == 0) return counts;
  for (std::int64_t& count : counts) count = std::min(count, capacity.tokens);
  return counts;
}

void await_values(const Tensor& values) {
  if (values.storage()->place() != Place::kDevice) return;
  device::IssueLog& log = values.storage()->device()->log();
  log.add_host_wait(log.last_of(device::StreamId::kCompute));
}

}  // namespace loom::models
