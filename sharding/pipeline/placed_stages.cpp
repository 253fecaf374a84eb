#include "sharding/pipeline/placed_stages.h"

#include <fmt/format.h>

#include "engine/core/error.h"

namespace loom::sharding {

void check_size(std::string_view name, std::int64_t value, std::int64_t least) {
  if (value >= least && value <= kLargestPipeline) return;
  config_error("{} is {}; write a number from {} to {}", name, value, least, kLargestPipeline);
}

void check_pipeline(std::int64_t layers, std::int64_t ranks, std::int64_t chunks) {
  check_size("num_layers", layers);
  check_size("the number of pipeline ranks", ranks);
  check_size("the number of chunks of a rank", chunks);
  check_size("the number of stages, ranks times chunks,", ranks * chunks);
}

std::int64_t chunks_of(std::int64_t layers, std::int64_t ranks, std::optional<std::int64_t> chunks,
                       std::optional<std::int64_t> per_stage) {
  if (!per_stage) return chunks.value_or(1);
  check_size("num_layers_per_virtual_pipeline_stage", *per_stage);
  if (layers % ranks != 0 || layers / ranks % *per_stage != 0) {
    config_error(
        "num_layers_per_virtual_pipeline_stage is {}: {} pipeline ranks hold {} layers a turn, and {} layers are no "
        "whole number of turns; write num_layers {}, or a number that divides the layers of a rank",
        *per_stage, ranks, ranks * *per_stage, layers, multiples_beside(layers, ranks * *per_stage));
  }
  const std::int64_t found = layers / ranks / *per_stage;
  if (chunks && *chunks != found) {
    config_error(
        "num_layers_per_virtual_pipeline_stage {} makes {} chunks of {} layers on {} pipeline ranks, and {} chunks are "
        "requested; leave one of the two out",
        *per_stage, found, layers, ranks, *chunks);
  }
  return found;
}

std::string multiples_beside(std::int64_t value, std::int64_t divisor, std::int64_t less) {
  const std::int64_t below = value - value % divisor - less;
  return below < 1 ? fmt::format("{}", below + divisor) : fmt::format("{} or {}", below, below + divisor);
}

std::vector<StageLayout> placed_stages(std::span<const std::int64_t> counts, std::int64_t ranks, Placement placement) {
  require(!counts.empty() && std::ssize(counts) % ranks == 0, "{} stages on {} ranks", counts.size(), ranks);
  std::vector<StageLayout> stages;
  std::int64_t layer = 0;
  for (const std::int64_t count : counts) {
    StageLayout stage;
    stage.stage = std::ssize(stages);
    stage.chunk = stage.stage / ranks;
    stage.rank = stage.stage % ranks;
    if (placement == Placement::kV && stage.chunk % 2 == 1) stage.rank = ranks - 1 - stage.rank;
    for (std::int64_t i = 0; i < count; ++i) stage.layers.push_back(layer++);
    stages.push_back(std::move(stage));
  }
  stages.front().embedding = true;
  stages.back().loss = true;
  return stages;
}

}  // namespace loom::sharding
