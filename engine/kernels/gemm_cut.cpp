#include "engine/kernels/gemm_cut.h"

#include <unistd.h>

#include "engine/core/rounding.h"

namespace loom::kernels {
namespace {

// A task of fewer is not worth a thread.
constexpr std::int64_t kLeastTiles = 4;
constexpr std::int64_t kLeastPanels = 2;

std::int64_t l2_bytes() {
  static const std::int64_t bytes = [] {
    constexpr std::int64_t kUnknown = std::int64_t{1} << 20, kLeast = std::int64_t{128} << 10;
#if defined(_SC_LEVEL2_CACHE_SIZE)
    const std::int64_t found = sysconf(_SC_LEVEL2_CACHE_SIZE);
    if (found >= kLeast) return found;
#endif
    return kUnknown;
  }();
  return bytes;
}

// Cuts a dimension for `wanted` tasks, none of fewer than `least`; how many tasks are left for the other dimension.
std::int64_t cut_for_tasks(std::int64_t wanted, std::int64_t least, std::int64_t multiple, Pieces& pieces) {
  const std::int64_t tasks = std::clamp<std::int64_t>(pieces.size / least, 1, wanted);
  pieces = equal_pieces(pieces.size, ceil_div(pieces.size, tasks), multiple);
  return ceil_div(wanted, pieces.count());
}

void cut_into_tasks(int threads, GemmCut& cut) {
  const TileSet& tiles = *cut.tiles;
  const std::int64_t narrowest = tiles.widths[kPanelWidths - 1];
  const auto cut_rows = [&](std::int64_t wanted) {
    return cut_for_tasks(wanted, kLeastTiles * tiles.rows, tiles.rows, cut.rows);
  };
  const auto cut_columns = [&](std::int64_t wanted) {
    return cut_for_tasks(wanted, kLeastPanels * tiles.widths[0], narrowest, cut.columns);
  };
  cut.packs_a ? cut_columns(cut_rows(threads)) : cut_rows(cut_columns(threads));
}

}  // namespace

Words words_of(const Gemm& op, const GemmKernels& kernels) {
  if (op.ab == DType::kF32) return Words::kFp32;
  if (op.ab == DType::kF16) return Words::kFp16Widened;
  return kernels.bf16 != nullptr && op.k % 2 == 0 ? Words::kBf16Pairs : Words::kBf16Widened;
}

Pieces equal_pieces(std::int64_t size, std::int64_t most, std::int64_t multiple) {
  const std::int64_t pieces = ceil_div(size, most);
  return {size, round_up(ceil_div(size, pieces), multiple)};
}

GemmCut cut_gemm(const Gemm& op, const GemmKernels& kernels, int threads) {
  GemmCut cut;
  cut.words = words_of(op, kernels);
  const bool is_of_pairs = cut.words == Words::kBf16Pairs;
  cut.tiles = is_of_pairs ? kernels.bf16 : kernels.fp32;
  cut.packs_a = op.transpose_a || !are_as_stored(cut.words);
  cut.steps = equal_pieces(is_of_pairs ? op.k / 2 : op.k, kMostSteps, 16);
  cut.rows = {op.m, op.m};
  cut.columns = {op.n, op.n};
  cut_into_tasks(threads, cut);

  constexpr std::int64_t kWord = sizeof(float);
  const std::int64_t widest = cut.tiles->widths[0];
  const std::int64_t panels = l2_bytes() * 3 / 8 / (cut.steps.length * kWord) / widest;
  cut.block_columns =
      equal_pieces(cut.columns.length, std::clamp<std::int64_t>(panels, 1, kMostPanels - 2) * widest, widest).length;
  cut.sums_stay_in_c = op.c == DType::kF32 || cut.steps.count() == 1;
  std::int64_t most = cut.rows.length;
  if (cut.packs_a) {
    const std::int64_t steps = cut.sums_stay_in_c ? cut.steps.length : cut.steps.size;
    most = std::min(most, kMostPackedBytes / kWord / steps);
  }
  if (!cut.sums_stay_in_c) most = std::min(most, kMostSumBytes / kWord / cut.block_columns);
  const std::int64_t rows = cut.tiles->rows;
  cut.block_rows = equal_pieces(cut.rows.length, std::max(most, rows), rows).length;
  return cut;
}

}  // namespace loom::kernels
