// The values that a program may read in a dry run of its step. Private to engine/plan.
#pragma once

#include "engine/core/rank_context.h"

namespace loom::plan {

// The loss may be read, as zero; values that steer a model's forward may not, and absent bytes nowhere:
// ConfigError.
void refuse_reads_of_values(RankContext& context);

}  // namespace loom::plan
