// RotaryEmbedding: the module that owns the rotary tables, cos and sin, without parameters. Private to models.
//
// Layout   Hugging Face's: [S, D] with the D / 2 angles twice, angle(s, i) = s * frequency(i) (rotary_scaling.h). The
//          frequencies and the angles are rounded to fp32, as in Hugging Face; so are the cosines and sines, which are
//          multiplied by the scaling's attention factor.
// Scaling  dynamic and longrope: the frequencies of a call follow its longest position, over all rows; cached keys
//          remain as they were rotated, as in transformers.
// Call     (hidden [B,S,...]) -> [cos, sin], each [S, D]: fp32 if the rank's rope is fused, rounded to hidden's
//          dtype if it is composed. With position_ids int32 [B,S] as second argument: tables of these positions, each
//          [B, S, D]. ModelError for a position that is negative or not below S; not below the third argument if
//          that is given: with a cache, positions exceed the tokens of a call. A fourth argument is the length of the
//          whole sequence, of which this rank has a part: the scaling follows that, alike on all ranks.
// Axes     with an mrope_section, position_ids may be [3,B,S]: time, height and width of each token. Each frequency
//          takes the position of its axis (mrope_axes()); equal positions give the bits of [B,S].
// Memory   fused: nothing before the first call; then at least as many rows as the highest position so far, permanently
//          (category activation; for one set of frequencies). Composed: nothing is kept, the tables are made at every
//          call as in Hugging Face.
// Threads  the rank's host thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "models/decoder/named_module.h"
#include "models/decoder/rotary_scaling.h"

namespace loom::models {

class RotaryEmbedding final : public NamedModule {
 public:
  RotaryEmbedding(std::string type_name, const Rotary& rotary);

 protected:
  nn::Value forward(const nn::Args& args) override;

 private:
  // The tables for `rows` positions, at the frequencies of the call.
  std::pair<Tensor, Tensor> make_tables(std::int64_t rows) const;

  const Rotary rotary_;
  std::int64_t frequency_length_ = 0;  // of the last call
};

}  // namespace loom::models
