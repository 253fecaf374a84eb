#include "engine/dist/token_slices.h"

#include <algorithm>

#include "engine/core/error.h"

namespace loom::dist {

TokenSlices::TokenSlices(const Shape& part, int ranks, int slices) : ranks_(ranks), slices_(slices) {
  check_model(part.ndim() == 3, "tokens of {} cannot be cut; hidden states are [batch, tokens, size]", to_string(part));
  batch_ = part[0];
  tokens_ = part[1];
}

std::vector<TokenSlices::Segment> TokenSlices::segments(int i) const {
  std::vector<Segment> segments;
  const std::int64_t end = begin(i + 1);
  for (std::int64_t at = begin(i); at < end;) {
    const std::int64_t row = at / tokens_, token = at % tokens_;
    const std::int64_t count = std::min(end - at, tokens_ - token), first = at - begin(i);
    segments.push_back(
        {first, {row * tokens_ * ranks_ + token, count, ranks_, tokens_}, {first, count, ranks_, rows(i)}});
    at += count;
  }
  return segments;
}

Shape TokenSlices::whole_of(const Shape& part) const {
  Shape whole = part;
  whole[1] *= ranks_;
  return whole;
}

Shape part_of_whole(const Shape& whole, int ranks) {
  check_model(whole.ndim() == 3 && whole[1] % ranks == 0,
              "{} ranks cannot share the tokens of {}; use a length that {} divides", ranks, to_string(whole), ranks);
  Shape part = whole;
  part[1] /= ranks;
  return part;
}

}  // namespace loom::dist
