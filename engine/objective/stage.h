// The stages of training and their properties: one row per stage.
//
//   const StageRow& stage = row_of(options.stage);
//   if (stage.has_pairs) ...
//
// Only this room compares stages; the others read the members of a row.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "engine/objective/options.h"

namespace loom::objective {

// The last layer of the model.
enum class Head : std::uint8_t {
  kLogits,  // its output layer
  kScores,  // one number per token instead (models/decoder/reward_model.h)
};

// Samples for fine-tuning, and the forward on them (objective.h).
enum class Samples : std::uint8_t { kInstructions, kPairs, kScoredPairs, kStepRewards };
enum class Forward : std::uint8_t { kNextToken, kPreference, kOutcomeReward, kProcessReward };

struct StageRow {
  std::optional<Stage> stage = {};  // none: the next token
  std::string_view word = {};       // of --stage
  Samples samples = Samples::kInstructions;
  Forward forward = Forward::kNextToken;
  std::string_view unit = {};   // of the loss; empty: for next tokens, which are bytes or tokens
  bool has_pairs = false;       // samples are pairs of answers, of which one is preferred
  bool has_preference = false;  // the loss is preference_loss()
  bool has_reference = false;   // the preference loss needs a reference model
  bool takes_chunks = false;    // --loss-chunk-size
  Head head = Head::kLogits;
  // The options of the loss, with has_preference.
  const PreferenceOptions ObjectiveOptions::*preference = &ObjectiveOptions::dpo;
};

// In the order of the help; the row of the next token is the first.
std::span<const StageRow> stage_rows();
const StageRow& row_of(std::optional<Stage> stage);

}  // namespace loom::objective
