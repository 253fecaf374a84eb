// Which pipeline stage holds which layers, as Megatron-core numbers them. Private to engine/convert.
//
// Plain    stages hold layers one behind another, as many each or as a list says.
// Chunks   chunk v of stage p holds layers (v * stages + p) * k and the k - 1 behind it.
// V        dualpipev: chunk 0 of stage p is the p-th slice from the front, chunk 1 the p-th from the back.
// Noop     a number without a layer: a gap in the local numbers.
// Threads  any.
// Errors   ConfigError with the flag, both figures and what to write.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/convert/mcore/mcore.h"

namespace loom::checkpoint {

struct LayerPlace {
  int stage = 0;
  int chunk = 0;
  std::int64_t local = 0;  // its number there

  bool operator==(const LayerPlace&) const = default;
};

struct LayerPlan {
  int chunks = 1;                  // of each stage
  std::vector<LayerPlace> layers;  // by the model's number
  LayerPlace last;                 // where the final norm and the output layer are; `local` is 0
};

LayerPlan plan_layers(std::int64_t layers, const PipelineOptions& options);

}  // namespace loom::checkpoint
