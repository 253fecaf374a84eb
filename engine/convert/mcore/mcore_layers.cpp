#include "engine/convert/mcore/mcore_layers.h"

#include <algorithm>
#include <fmt/ranges.h>
#include <numeric>
#include <set>
#include <utility>

#include "engine/core/error.h"

namespace loom::checkpoint {
namespace {

void check_list(std::int64_t layers, const PipelineOptions& options) {
  const auto& list = options.layer_list;
  if (options.layers_per_chunk || !options.noop_layers.empty() || options.dualpipev) {
    config_error(
        "--num-layer-list does not go with --num-layers-per-virtual-pipeline-stage, --noop-layers and "
        "--schedules-method; leave it or those out");
  }
  if (list.size() != static_cast<std::size_t>(options.stages)) {
    config_error("--num-layer-list {} has {} numbers for {} pipeline stages; write one for each stage",
                 fmt::join(list, ","), list.size(), options.stages);
  }
  const std::int64_t sum = std::accumulate(list.begin(), list.end(), std::int64_t{0});
  if (sum == layers) return;
  config_error("--num-layer-list {} sums up to {} layers, but the model has {}; write numbers that sum up to {}",
               fmt::join(list, ","), sum, layers, layers);
}

std::set<std::int64_t> noops_of(std::int64_t layers, const PipelineOptions& options) {
  const std::set<std::int64_t> noops(options.noop_layers.begin(), options.noop_layers.end());
  const std::int64_t total = layers + static_cast<std::int64_t>(noops.size());
  if (noops.size() != options.noop_layers.size()) {
    config_error("--noop-layers {} names a layer twice; write each once", fmt::join(options.noop_layers, ","));
  }
  if (!noops.empty() && *noops.rbegin() >= total) {
    config_error("--noop-layers: {} is no layer of {} ({} of the model and {} without weights); they count from 0",
                 *noops.rbegin(), total, layers, noops.size());
  }
  return noops;
}

void check_divides(std::int64_t total, std::int64_t by, std::string_view what) {
  if (by >= 1 && total % by == 0) return;
  config_error(
      "{} layers (--noop-layers counted) cannot be cut into {}; change the sizes, add --noop-layers, or write "
      "--num-layer-list",
      total, what);
}

// Where number `at` of `total` is.
LayerPlace place_of(std::int64_t at, std::int64_t total, const PipelineOptions& options) {
  const std::int64_t stages = options.stages;
  if (options.dualpipev) {
    const std::int64_t slice = total / stages / 2;
    const bool is_front = at < total / 2;
    const std::int64_t stage = is_front ? at / slice : (total - 1 - at) / slice;
    return {static_cast<int>(stage), is_front ? 0 : 1, at % slice};
  }
  if (options.layers_per_chunk) {
    const std::int64_t k = *options.layers_per_chunk;
    return {static_cast<int>(at / k % stages), static_cast<int>(at / k / stages), at % k};
  }
  const std::int64_t each = total / stages;
  return {static_cast<int>(at / each), 0, at % each};
}

LayerPlan plan_of_list(const PipelineOptions& options) {
  LayerPlan plan;
  for (int stage = 0; stage < options.stages; ++stage) {
    const std::int64_t layers = options.layer_list[static_cast<std::size_t>(stage)];
    for (std::int64_t local = 0; local < layers; ++local) plan.layers.push_back({stage, 0, local});
  }
  plan.last = {options.stages - 1, 0, 0};
  return plan;
}

}  // namespace

LayerPlan plan_layers(std::int64_t layers, const PipelineOptions& options) {
  if (!options.layer_list.empty()) {
    check_list(layers, options);
    return plan_of_list(options);
  }
  if (options.dualpipev && options.layers_per_chunk) {
    config_error(
        "--schedules-method dualpipev cuts each stage in two itself; remove --num-layers-per-virtual-pipeline-stage");
  }
  const std::set<std::int64_t> noops = noops_of(layers, options);
  const std::int64_t total = layers + static_cast<std::int64_t>(noops.size());
  LayerPlan plan;
  if (options.dualpipev) {
    check_divides(total, std::int64_t{2} * options.stages,
                  fmt::format("2 slices for each of {} stages", options.stages));
    plan.chunks = 2;
  } else if (options.layers_per_chunk) {
    check_divides(total, *options.layers_per_chunk * options.stages,
                  fmt::format("chunks of {} layers for {} stages", *options.layers_per_chunk, options.stages));
    plan.chunks = static_cast<int>(total / (*options.layers_per_chunk * options.stages));
  } else {
    check_divides(total, options.stages, fmt::format("{} stages", options.stages));
  }
  for (std::int64_t at = 0; at < total; ++at) {
    if (!noops.contains(at)) plan.layers.push_back(place_of(at, total, options));
  }
  plan.last = {options.dualpipev ? 0 : options.stages - 1, plan.chunks - 1, 0};
  return plan;
}

}  // namespace loom::checkpoint
