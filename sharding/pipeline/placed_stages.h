// What the rules of split.h share: sizes that are allowed, and stages from the number of layers of each.
// Private to sharding/pipeline.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sharding/pipeline/stage_layout.h"

namespace loom::sharding {

// The largest number of layers, ranks, chunks or stages.
inline constexpr std::int64_t kLargestPipeline = 1'000'000;

// ConfigError unless `least` <= value <= kLargestPipeline.
void check_size(std::string_view name, std::int64_t value, std::int64_t least = 1);
// The same for layers, ranks, chunks, and ranks times chunks.
void check_pipeline(std::int64_t layers, std::int64_t ranks, std::int64_t chunks);

// The chunks of a rank: as given, else as many as turns of `per_stage` layers on every rank hold all layers, else 1.
// ConfigError where there is no whole number of turns, or another than `chunks`. `layers` and `ranks` are checked.
std::int64_t chunks_of(std::int64_t layers, std::int64_t ranks, std::optional<std::int64_t> chunks,
                       std::optional<std::int64_t> per_stage);

// "8 or 12": the multiples of `divisor` next to `value`, `less` less each; those below 1 are left out.
std::string multiples_beside(std::int64_t value, std::int64_t divisor, std::int64_t less = 0);

// Stage s with counts[s] layers; the embedding on the first stage, the loss on the last. The ranks divide the stages.
std::vector<StageLayout> placed_stages(std::span<const std::int64_t> counts, std::int64_t ranks,
                                       Placement placement = Placement::kLoop);

}  // namespace loom::sharding
