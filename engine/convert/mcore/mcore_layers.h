// The assignment of layers to pipeline stages, as Megatron-core numbers them. Private to engine/convert.
//
// Plain    stages hold consecutive layers, in equal numbers or by a list.
// Chunks   chunk v of stage p holds layers (v * stages + p) * k and the next k - 1.
// V        dualpipev: chunk 0 of stage p is the p-th slice from the front, chunk 1 the p-th from the back.
// Noop     a number without a layer: a gap in the local numbers.
// Threads  any.
// Errors   ConfigError with the flag, both figures and the remedy.
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
  LayerPlace last;                 // the place of the final norm and the output layer; `local` is 0
};

LayerPlan plan_layers(std::int64_t layers, const PipelineOptions& options);

}  // namespace loom::checkpoint
