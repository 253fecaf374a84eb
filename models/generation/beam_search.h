// Beam search over a session's rows. Private to models.
//
// Source  transformers' _beam_search, early_stopping False.
#pragma once

#include "models/generation/session.h"
#include "models/generation/session_reader.h"

namespace loom::models {

// Preconditions: the checks of GenerationSession.
BeamResult beam_search(SessionReader& reader, const DecoderConfig& config, const Row& prompt,
                       const BeamOptions& options);

}  // namespace loom::models
