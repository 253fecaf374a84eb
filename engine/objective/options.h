// ObjectiveOptions: the training goal of a job, and its loss.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "engine/objective/preference_loss.h"

namespace loom::objective {

// The training goal other than the next token of a text, by --stage (stage.h).
enum class Stage : std::uint8_t {
  kSft,    // supervised fine-tuning
  kDpo,    // direct preference optimization
  kSimpo,  // simple preference optimization, without a reference model
  kOrm,    // a reward model of outcomes
  kPrm,    // a reward model of processes
};

// The items over which the loss of a step is averaged: --loss-reduction, for next tokens only.
enum class LossReduction : std::uint8_t {
  kPerToken,    // the scored tokens of the whole step, on all ranks
  kMicroBatch,  // its micro-batches, each of which is the mean over its scored tokens
  kPerSample,   // its samples, each of which is the mean over its scored tokens; one without any counts as 0
};

struct ObjectiveOptions {
  std::optional<Stage> stage;  // none: the next token
  // --stage dpo and simpo: the answers that the loss prefers.
  PreferenceOptions dpo;
  PreferenceOptions simpo = {.beta = 2.5, .simpo = true};
  PreferenceOptions preference;                          // filled in: the options of --stage
  std::optional<std::filesystem::path> ref_model;        // Hugging Face folder of the reference model
  std::optional<std::filesystem::path> ref_logps_cache;  // file of its log-probabilities, which replaces the model

  LossReduction loss_reduction = LossReduction::kPerToken;

  std::int64_t loss_chunk_size = 0;   // tokens; 0: the logits of all tokens exist at once
  std::int64_t total_chunk_size = 0;  // above 0: loss_chunk_size follows from it and the micro-batch
  bool loss_in_model = false;         // data::put_loss_in_model
};

}  // namespace loom::objective
