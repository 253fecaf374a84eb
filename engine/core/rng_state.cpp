#include "engine/core/rng_state.h"

#include <algorithm>

namespace loom {

RngPieces::RngPieces(std::int64_t rows)
    : whole_(RngState::current()),
      narrows_(whole_.rows != nullptr && static_cast<std::int64_t>(whole_.rows->numbers.size()) == rows),
      calls_(whole_.calls) {}

RngPieces::~RngPieces() {
  if (!narrows_) return;
  RngState& state = RngState::current();
  state.calls = std::max(calls_, state.calls);
  state.rows = whole_.rows;
}

void RngPieces::begin(std::int64_t first, std::int64_t count) {
  if (!narrows_) return;
  RngRows piece = *whole_.rows;
  const auto from = whole_.rows->numbers.begin() + first;
  piece.numbers.assign(from, from + count);
  RngState& state = RngState::current();
  calls_ = std::max(calls_, state.calls);
  state.calls = whole_.calls;
  state.rows = std::make_shared<const RngRows>(std::move(piece));
}

}  // namespace loom
