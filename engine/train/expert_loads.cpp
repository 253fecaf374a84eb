#include "engine/train/expert_loads.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

namespace loom::train {
namespace {

void sum_over(comm::ProcessGroup& ranks, std::vector<double>& values) {
  if (ranks.size() == 1) return;
  ranks.all_reduce(comm::kHostLane, values.data(), std::ssize(values), DType::kF64, comm::ReduceOp::sum(),
                   "expert loads");
}

}  // namespace

// The experts of each layer, then the dropped choices.
std::vector<double> ExpertLoads::take_counts() {
  std::vector<double> counts;
  double dropped = 0;
  for (const models::ExpertBlock& block : blocks_) {
    counts.insert(counts.end(), block.slot->tokens.begin(), block.slot->tokens.end());
    std::ranges::fill(block.slot->tokens, 0);
    dropped += static_cast<double>(std::exchange(block.slot->dropped, 0));
  }
  counts.push_back(dropped);
  return counts;
}

void ExpertLoads::add_figures(const std::vector<double>& counts, StepMetrics& metrics) const {
  double worst = 0;
  std::size_t begin = 0;
  for (const models::ExpertBlock& block : blocks_) {
    const std::span layer(counts.data() + begin, block.slot->tokens.size());
    begin += layer.size();
    metrics.expert_tokens.resize(std::max(metrics.expert_tokens.size(), layer.size()));
    for (std::size_t e = 0; e < layer.size(); ++e) metrics.expert_tokens[e] += std::llround(layer[e]);
    const double mean = std::reduce(layer.begin(), layer.end()) / static_cast<double>(layer.size());
    if (mean > 0) worst = std::max(worst, std::ranges::max(layer) / mean);
  }
  metrics.reports.emplace_back("expert_load_max_over_mean", worst);
  if (blocks_.front().slot->options.capacity_factor > 0) metrics.reports.emplace_back("dropped_choices", counts.back());
}

void ExpertLoads::end_step(comm::ProcessGroup& ranks, StepMetrics& metrics) {
  if (blocks_.empty()) return;
  std::vector<double> counts = take_counts();
  sum_over(ranks, counts);
  if (std::ranges::any_of(counts, [](double count) { return count > 0; })) add_figures(counts, metrics);
  auto layer = counts.begin();
  for (const models::ExpertBlock& block : blocks_) {
    const auto end = layer + std::ssize(block.slot->tokens);
    if (block.slot->options.enable_expert_bias) models::update_expert_bias(block, {layer, end});
    layer = end;
  }
}

}  // namespace loom::train
