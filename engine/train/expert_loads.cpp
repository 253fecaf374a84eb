#include "engine/train/expert_loads.h"

#include <algorithm>
#include <array>
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

ExpertLoads::Figures ExpertLoads::figures_of(const std::vector<double>& counts) const {
  Figures figures{.tokens = {}, .worst = 0, .dropped = counts.back(), .has_capacity = 0};
  std::size_t begin = 0;
  for (const models::ExpertBlock& block : blocks_) {
    const std::span layer(counts.data() + begin, block.slot->tokens.size());
    begin += layer.size();
    figures.tokens.resize(std::max(figures.tokens.size(), layer.size()));
    for (std::size_t e = 0; e < layer.size(); ++e) figures.tokens[e] += layer[e];
    const double mean = std::reduce(layer.begin(), layer.end()) / static_cast<double>(layer.size());
    if (mean > 0) figures.worst = std::max(figures.worst, std::ranges::max(layer) / mean);
    if (block.slot->options.capacity_factor > 0) figures.has_capacity = 1;
  }
  return figures;
}

// Of the layers of all stages; a stage may have none with experts.
void ExpertLoads::join_stages(comm::ProcessGroup& stages, Figures& figures) {
  std::array<double, 3> most{static_cast<double>(figures.tokens.size()), figures.worst, figures.has_capacity};
  stages.all_reduce(comm::kHostLane, most.data(), std::ssize(most), DType::kF64, comm::ReduceOp::max(), "expert loads");
  figures.tokens.resize(static_cast<std::size_t>(most[0]));
  figures.worst = most[1];
  figures.has_capacity = most[2];
  figures.tokens.push_back(figures.dropped);
  sum_over(stages, figures.tokens);
  figures.dropped = figures.tokens.back();
  figures.tokens.pop_back();
}

void ExpertLoads::end_step(comm::ProcessGroup& ranks, comm::ProcessGroup* stages, StepMetrics& metrics) {
  if (blocks_.empty() && stages == nullptr) return;
  std::vector<double> counts = take_counts();
  sum_over(ranks, counts);
  Figures figures = figures_of(counts);
  if (stages != nullptr) join_stages(*stages, figures);
  if (std::ranges::any_of(figures.tokens, [](double count) { return count > 0; })) {
    for (const double tokens : figures.tokens) metrics.expert_tokens.push_back(std::llround(tokens));
    metrics.reports.emplace_back("expert_load_max_over_mean", figures.worst);
    if (figures.has_capacity > 0) metrics.reports.emplace_back("dropped_choices", figures.dropped);
  }
  auto layer = counts.begin();
  for (const models::ExpertBlock& block : blocks_) {
    const auto end = layer + std::ssize(block.slot->tokens);
    if (block.slot->options.enable_expert_bias) models::update_expert_bias(block, {layer, end});
    layer = end;
  }
}

}  // namespace loom::train
