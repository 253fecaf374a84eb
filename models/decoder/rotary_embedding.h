// RotaryEmbedding: the module that owns the rotary tables, cos and sin, without parameters. Private to models.
//
// Layout   Hugging Face's: [S, D] with the D / 2 angles twice, angle(s, i) = s * theta^(-2 i / D). The exponents, the
//          frequencies and the angles are rounded to fp32, as they are there; so are the cosines and sines.
// Call     (hidden [B,S,...]) -> [cos, sin], each [S, D]: fp32 where the rank's rope is fused, rounded to hidden's
//          dtype where it is composed. With position_ids int32 [B,S] as second argument: those of these positions, each
//          [B, S, D]. ModelError for a position that is negative or not below S; not below the third argument where
//          that is given: with a cache positions go beyond the tokens of a call.
// Memory   fused: nothing before the first call; then at least as many rows as positions were met so far, for good
//          (category activation). Composed: nothing is kept, the tables are made at every call as Hugging Face does.
// Threads  the rank's host thread.
#pragma once

#include <cstdint>
#include <string>

#include "models/decoder/named_module.h"

namespace loom::models {

class RotaryEmbedding final : public NamedModule {
 public:
  RotaryEmbedding(std::string type_name, std::int64_t head_dim, std::int64_t max_positions, double theta);

 protected:
  nn::Value forward(const nn::Args& args) override;

 private:
  const std::int64_t head_dim_;
  const std::int64_t max_positions_;
  const double theta_;
};

}  // namespace loom::models
