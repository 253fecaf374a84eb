#include "engine/objective/stage.h"

#include <algorithm>
#include <array>

#include "engine/core/error.h"
#include "engine/data/byte_batches.h"
#include "engine/objective/options.h"
#include "engine/objective/preference_step.h"
#include "engine/objective/reward_step.h"

namespace loom::objective {
namespace {

data::ForwardStep next_token(const ObjectiveOptions&, const data::TokenIds&) { return data::next_token_step; }
data::ForwardStep preference(const ObjectiveOptions& options, const data::TokenIds&) {
  return preference_step(options.preference);
}
data::ForwardStep outcome_reward(const ObjectiveOptions&, const data::TokenIds&) { return outcome_reward_step(); }
data::ForwardStep process_reward(const ObjectiveOptions&, const data::TokenIds& ids) {
  return process_reward_step(ids.rewards);
}

const std::array<StageRow, 6> kRows = {{
    {.stage = {},
     .word = "",
     .takes_chunks = true,
     .preference = &ObjectiveOptions::dpo,
     .loaders = data::instruction_data_loaders,
     .forward_step = next_token},
    {.stage = Stage::kSft,
     .word = "sft",
     .takes_chunks = true,
     .preference = &ObjectiveOptions::dpo,
     .loaders = data::instruction_data_loaders,
     .forward_step = next_token},
    {.stage = Stage::kDpo,
     .word = "dpo",
     .has_pairs = true,
     .has_preference = true,
     .has_reference = true,
     .unit = "a pair",
     .preference = &ObjectiveOptions::dpo,
     .loaders = data::preference_data_loaders,
     .forward_step = preference},
    {.stage = Stage::kSimpo,
     .word = "simpo",
     .has_pairs = true,
     .has_preference = true,
     .unit = "a pair",
     .preference = &ObjectiveOptions::simpo,
     .loaders = data::preference_data_loaders,
     .forward_step = preference},
    {.stage = Stage::kOrm,
     .word = "orm",
     .has_pairs = true,
     .head = Head::kScores,
     .unit = "a pair",
     .preference = &ObjectiveOptions::dpo,
     .loaders = data::outcome_reward_data_loaders,
     .forward_step = outcome_reward},
    {.stage = Stage::kPrm,
     .word = "prm",
     .unit = "nats per label",
     .preference = &ObjectiveOptions::dpo,
     .loaders = data::process_reward_data_loaders,
     .forward_step = process_reward},
}};

}  // namespace

std::span<const StageRow> stage_rows() { return kRows; }

const StageRow& row_of(std::optional<Stage> stage) {
  const auto row = std::ranges::find(kRows, stage, &StageRow::stage);
  require(row != kRows.end(), "a stage without a row");
  return *row;
}

}  // namespace loom::objective
