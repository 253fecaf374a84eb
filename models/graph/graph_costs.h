// The price of a recorded operator, by its class: matrix products, attention, grouped products, norms, element-wise
// chains, gathers. Views and reads of single values have none.
//
// Bytes   each input and output once; an expanded input has the bytes of its storage.
// Source  docs/model-graphs.md, "Prices".
#pragma once

#include <string_view>

#include "engine/device/cost.h"
#include "models/graph/graph_file.h"

namespace loom::models {

enum class OpClass : std::uint8_t {
  kView,
  kProduct,
  kAttention,
  kGrouped,
  kConvolution,
  kCopy,
  kElementwise,
  kUnknown
};

// Of the name without overload: "aten.mm". An unknown one is kUnknown and has the price of its bytes.
OpClass class_of(std::string_view name);

device::Cost cost_of(const ModelGraph& graph, const GraphOp& op, OpClass op_class);

}  // namespace loom::models
