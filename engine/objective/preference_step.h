// The forward of preference training: log-probabilities of chosen and rejected answers, under the reference model too.
//
// Batch   "input_ids" and "targets", int32 [2 n, S]: the rows of n pairs as in preference_loss.h; targets are one
//         token further, -100 outside the answer.
// Source  MindSpeed-LLM tasks/posttrain/dpo/dpo_trainer.py.
#pragma once

#include "engine/data/step.h"
#include "engine/objective/preference_loss.h"

namespace loom::objective {

// With options.has_reference(), the run needs PretrainCallbacks::has_reference_model or --ref-logps-cache.
data::ForwardStep preference_step(const PreferenceOptions& options);

}  // namespace loom::objective
