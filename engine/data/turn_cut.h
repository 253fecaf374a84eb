// Cut-offs: how many ids of a turn's prompt and of its answer are kept; the rest is cut at their ends.
// Private to engine.
//
// Room     the rest of the cut-off after earlier turns; at least 1.
// Share    rule A gives prompt and answer room in proportion, the answer at least one id; rule B takes all of the side
//          that is shorter than half of the room, and shares in proportion where both are longer.
// Source   MindSpeed-LLM templates.py infer_max_len (A), decoder_packed_mtf_dataset.py _infer_seqlen (B); their
//          products of floats are products of integers here.
#pragma once

#include <cstdint>

namespace loom::data {

struct TurnLengths {
  std::int64_t prompt = 0;
  std::int64_t answer = 0;
  bool operator==(const TurnLengths&) const = default;
};

TurnLengths cut_a(TurnLengths turn, std::int64_t room);
TurnLengths cut_b(TurnLengths turn, std::int64_t room);

}  // namespace loom::data
