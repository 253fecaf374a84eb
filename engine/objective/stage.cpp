#include "engine/objective/stage.h"

#include <algorithm>
#include <array>

#include "engine/core/error.h"

namespace loom::objective {
namespace {

constexpr std::array<StageRow, 6> kRows = {{
    {.takes_chunks = true},
    {.stage = Stage::kSft, .word = "sft", .takes_chunks = true},
    {.stage = Stage::kDpo,
     .word = "dpo",
     .samples = Samples::kPairs,
     .forward = Forward::kPreference,
     .unit = "a pair",
     .has_pairs = true,
     .has_preference = true,
     .has_reference = true},
    {.stage = Stage::kSimpo,
     .word = "simpo",
     .samples = Samples::kPairs,
     .forward = Forward::kPreference,
     .unit = "a pair",
     .has_pairs = true,
     .has_preference = true,
     .preference = &ObjectiveOptions::simpo},
    {.stage = Stage::kOrm,
     .word = "orm",
     .samples = Samples::kScoredPairs,
     .forward = Forward::kOutcomeReward,
     .unit = "a pair",
     .has_pairs = true,
     .head = Head::kScores},
    {.stage = Stage::kPrm,
     .word = "prm",
     .samples = Samples::kStepRewards,
     .forward = Forward::kProcessReward,
     .unit = "nats per label"},
}};

}  // namespace

std::span<const StageRow> stage_rows() { return kRows; }

const StageRow& row_of(std::optional<Stage> stage) {
  const auto row = std::ranges::find(kRows, stage, &StageRow::stage);
  require(row != kRows.end(), "a stage without a row");
  return *row;
}

}  // namespace loom::objective
