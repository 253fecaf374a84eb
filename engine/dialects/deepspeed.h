// DeepSpeed's keys inside accelerate's file. Private to engine/dialects.
#pragma once

#include "engine/dialects/reading.h"

namespace loom::dialects {

void derive_deepspeed_block(Reading& reading);

}  // namespace loom::dialects
