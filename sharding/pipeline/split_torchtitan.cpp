#include <string_view>

#include "engine/core/error.h"
#include "sharding/pipeline/placed_stages.h"
#include "sharding/pipeline/split.h"

namespace loom::sharding {
namespace {

void check_less(std::string_view name, std::int64_t less, std::int64_t per_stage) {
  if (less <= per_stage) return;
  config_error("{} is {}, and the smallest stage has {}; write {} at most, more layers or fewer stages", name, less,
               per_stage, per_stage);
}

}  // namespace

std::vector<StageLayout> split_torchtitan(const TorchtitanSplit& split) {
  check_pipeline(split.layers, split.ranks, split.chunks);
  check_size("first_stage_less_layers", split.first_stage_less_layers, 0);
  check_size("last_stage_less_layers", split.last_stage_less_layers, 0);
  if (split.placement == Placement::kV && split.chunks != 2) {
    config_error("a schedule in V shape has two stages a rank, and {} are requested; write two, or another schedule",
                 split.chunks);
  }
  const std::int64_t stages = split.ranks * split.chunks;
  if (stages == 1) return placed_stages(std::vector{split.layers}, 1);
  const std::int64_t places = split.layers + split.first_stage_less_layers + split.last_stage_less_layers;
  const std::int64_t per_stage = places / stages;
  if (per_stage == 0) {
    config_error(
        "{} layers with first_stage_less_layers {} and last_stage_less_layers {} count as {}, and there are {} "
        "stages; write {} stages at most",
        split.layers, split.first_stage_less_layers, split.last_stage_less_layers, places, stages, places);
  }
  check_less("first_stage_less_layers", split.first_stage_less_layers, per_stage);
  check_less("last_stage_less_layers", split.last_stage_less_layers, per_stage);
  std::vector<std::int64_t> counts;
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    counts.push_back(per_stage + (stage < places % stages ? 1 : 0));
  }
  counts.front() -= split.first_stage_less_layers;
  counts.back() -= split.last_stage_less_layers;
  return placed_stages(counts, split.ranks, split.placement);
}

}  // namespace loom::sharding
