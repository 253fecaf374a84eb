// ObjectiveOptions: what a job trains, and its loss.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "engine/objective/preference_loss.h"

namespace loom::objective {

// What a job trains beside the next token of its text, by --stage (stage.h).
enum class Stage : std::uint8_t {
  kSft,    // supervised fine-tuning
  kDpo,    // direct preference optimization
  kSimpo,  // simple preference optimization, without a reference model
  kOrm,    // a reward model of outcomes
  kPrm,    // a reward model of processes
};

// Over which the loss of a step is a mean: --loss-reduction, of next tokens alone.
enum class LossReduction : std::uint8_t {
  kPerToken,    // the scored tokens of the whole step, on all ranks
  kMicroBatch,  // its micro-batches, each of which is the mean over its scored tokens
  kPerSample,   // its samples, each of which is the mean over its scored tokens; one without any counts as 0
};

struct ObjectiveOptions {
  std::optional<Stage> stage;  // none: the next token
  // --stage dpo and simpo: which answers the loss prefers.
  PreferenceOptions dpo;
  PreferenceOptions simpo = {.beta = 2.5, .simpo = true};
  PreferenceOptions preference;                          // filled in: that of --stage
  std::optional<std::filesystem::path> ref_model;        // Hugging Face folder of the reference model
  std::optional<std::filesystem::path> ref_logps_cache;  // file of its log-probabilities, in the place of the model

  LossReduction loss_reduction = LossReduction::kPerToken;

  std::int64_t loss_chunk_size = 0;   // tokens; 0: the logits of all tokens exist at once
  std::int64_t total_chunk_size = 0;  // above 0: loss_chunk_size follows from it and the micro-batch
};

}  // namespace loom::objective
