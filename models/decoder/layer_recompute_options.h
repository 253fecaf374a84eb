// LayerRecompute: the layers of a decoder to recompute, in Megatron's words; its effect is in
// layer_recompute.h.
#pragma once

#include <cstdint>
#include <optional>

namespace loom::models {

enum class RecomputeGranularity : std::uint8_t { kNone, kFull, kSelective };
enum class RecomputeMethod : std::uint8_t { kNone, kUniform, kBlock };

// The flags, checked against each other by engine/cli.
struct LayerRecompute {
  RecomputeGranularity granularity = RecomputeGranularity::kNone;
  RecomputeMethod method = RecomputeMethod::kNone;                  // given exactly with kFull
  std::int64_t num_layers = 0;                                      // given exactly with kFull: at least 1
  bool activation_function = false;                                 // not with kUniform; so is norm, and moe_layer
  std::optional<std::int64_t> activation_function_num_layers = {};  // none: all remaining ones
  bool norm = false;
  std::optional<std::int64_t> norm_num_layers = {};
  bool moe_layer = false;

  bool any() const { return granularity != RecomputeGranularity::kNone || activation_function || norm || moe_layer; }
};

}  // namespace loom::models
