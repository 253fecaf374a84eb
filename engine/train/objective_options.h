// ObjectiveOptions: what the loss of a job is, beside its stage (data/options.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "engine/train/preference_loss.h"

namespace loom::train {

struct ObjectiveOptions {
  // --stage dpo and simpo: which answers the loss prefers.
  PreferenceOptions dpo;
  PreferenceOptions simpo = {.beta = 2.5, .simpo = true};
  PreferenceOptions preference;                          // filled in: that of --stage
  std::optional<std::filesystem::path> ref_model;        // Hugging Face folder of the reference model
  std::optional<std::filesystem::path> ref_logps_cache;  // file of its log-probabilities, in the place of the model

  std::int64_t loss_chunk_size = 0;   // tokens; 0: the logits of all tokens exist at once
  std::int64_t total_chunk_size = 0;  // above 0: loss_chunk_size follows from it and the micro-batch
};

}  // namespace loom::train
