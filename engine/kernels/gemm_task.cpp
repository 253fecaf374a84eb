#include "engine/kernels/gemm_task.h"

#include "engine/core/rounding.h"
#include "engine/kernels/convert.h"
#include "engine/kernels/scratch.h"

namespace loom::kernels {
namespace {

// The buffers that a thread keeps between products.
struct Workspace {
  Scratch a, b, sums, bias;

  static Workspace& here() {
    static thread_local Workspace workspace;
    return workspace;
  }
};

OutputType output_type(DType dtype) {
  if (dtype == DType::kBF16) return OutputType::kBf16;
  return dtype == DType::kF16 ? OutputType::kFp16 : OutputType::kFp32;
}

// The rows behind a tile are prefetched by its first panels, two rows each.
constexpr int kPrefetchingPanels = 4;
constexpr std::int64_t kWord = sizeof(float);

}  // namespace

GemmTask::GemmTask(const Gemm& op, const GemmCut& cut, const GemmOperands& operands)
    : op_(op),
      cut_(cut),
      tiles_(*cut.tiles),
      operands_(operands),
      ab_bytes_(element_bytes(op.ab)),
      c_bytes_(element_bytes(op.c)),
      step_elements_(cut.words == Words::kBf16Pairs ? 2 : 1) {}

void GemmTask::run(Span rows, Span columns) {
  first_column_ = columns.begin;
  if (op_.bias != nullptr) widen_bias(columns);
  const Pieces blocks{rows.size, cut_.block_rows};
  for (std::int64_t i = 0; i < blocks.count(); ++i) {
    const Span block{rows.begin + blocks.begin(i), blocks.extent(i)};
    cut_.sums_stay_in_c ? run_with_sums_in_c(block, columns) : run_with_own_sums(block, columns);
  }
}

template <class Body>
void GemmTask::each_block(Span columns, Body body) const {
  const Pieces blocks{columns.size, cut_.block_columns};
  for (std::int64_t i = 0; i < blocks.count(); ++i) body(Span{columns.begin + blocks.begin(i), blocks.extent(i)});
}

void GemmTask::run_with_sums_in_c(Span rows, Span columns) {
  for (std::int64_t i = 0; i < cut_.steps.count(); ++i) {
    const Part here = part(i);
    if (cut_.packs_a) pack_rows(rows, here, room_for_rows(rows, cut_.steps.length));
    each_block(columns, [&](Span block) { multiply_part(rows, block, here, nullptr); });
  }
}

void GemmTask::run_with_own_sums(Span rows, Span columns) {
  float* const room = cut_.packs_a ? room_for_rows(rows, cut_.steps.size) : nullptr;
  each_block(columns, [&](Span block) {
    float* const sums = Workspace::here().sums.get<float>(rows.size * block.size);
    for (std::int64_t i = 0; i < cut_.steps.count(); ++i) {
      if (cut_.packs_a) {
        packed_a_ = room + cut_.steps.begin(i) * whole_tiles(rows);
        if (block.begin == columns.begin) pack_rows(rows, part(i), packed_a_);
      }
      multiply_part(rows, block, part(i), sums);
    }
  });
}

// One part of K of a block of columns. `sums` keeps the sums of 16-bit results between parts.
void GemmTask::multiply_part(Span rows, Span columns, const Part& part, float* sums) {
  pack_columns(columns, part);
  const bool is_first = part.index == 0, is_last = part.index == cut_.steps.count() - 1;
  GemmTile tile;
  tile.steps = part.steps;
  const std::int64_t offset = (rows.begin * op_.n + columns.begin) * c_bytes_;
  tile.c = operands_.c + offset;
  tile.c_row = op_.n;
  tile.type = output_type(op_.c);
  if (op_.c == DType::kF32) {
    if (!is_first || op_.accumulate) tile.sums = static_cast<const float*>(tile.c), tile.sums_row = op_.n;
  } else {
    tile.adds_c = is_last && op_.accumulate;
    if (!is_first) tile.sums = sums, tile.sums_row = columns.size;
    if (!is_last) tile.c = sums, tile.c_row = columns.size, tile.type = OutputType::kFp32;
  }
  if (is_last && op_.add_to != nullptr) {
    tile.c = static_cast<char*>(op_.add_to) + offset;
    tile.adds_c = tile.rounds_first = true;
  }
  if (is_last && bias_ != nullptr) tile.bias = bias_ + (columns.begin - first_column_);
  multiply_rows_with_panels(rows, part, tile);
}

void GemmTask::multiply_rows_with_panels(Span rows, const Part& part, const GemmTile& first) {
  const std::int64_t c_bytes = first.type == OutputType::kFp32 ? 4 : 2;
  for (std::int64_t row = 0; row < rows.size; row += tiles_.rows) {
    const std::int64_t count = std::min<std::int64_t>(tiles_.rows, rows.size - row);
    GemmTile tile = tile_of_rows(packed_a_ != nullptr ? row : rows.begin + row, count, part, first);
    for (int i = 0; i < panel_count_; ++i) {
      const Panel& panel = panels_[i];
      prefetch_rows_behind(i, part.steps, tile);
      tile.columns = panel.columns;
      tile.b = packed_b_ + panel.column * part.steps;
      if (first.sums != nullptr) tile.sums = first.sums + row * first.sums_row + panel.column;
      if (first.bias != nullptr) tile.bias = first.bias + panel.column;
      tile.c = static_cast<char*>(first.c) + (row * first.c_row + panel.column) * c_bytes;
      tiles_.multiply[panel.width][count - 1](tile);
    }
  }
}

GemmTile GemmTask::tile_of_rows(std::int64_t row, std::int64_t count, const Part& part, GemmTile tile) const {
  tile.rows = count;
  if (packed_a_ == nullptr) {
    tile.a = operands_.a + (row * op_.k + part.element) * ab_bytes_;
    tile.a_row = op_.k * ab_bytes_;
    tile.a_step = kWord;
  } else {
    tile.a = reinterpret_cast<const char*>(packed_a_ + row * part.steps);
    const bool is_along_k = tiles_.packs_along_k || !op_.transpose_a;
    tile.a_row = kWord * (is_along_k ? part.steps : 1);
    tile.a_step = kWord * (is_along_k ? 1 : tiles_.rows);
  }
  return tile;
}

void GemmTask::prefetch_rows_behind(int panel, std::int64_t steps, GemmTile& tile) const {
  tile.next_a = tile.a;
  tile.next_row = tile.next_step = 0;
  if (panel >= kPrefetchingPanels) return;
  tile.next_row = packed_a_ == nullptr ? tile.a_row : steps * kWord;
  tile.next_a = tile.a + (tiles_.rows + 2 * panel) * tile.next_row;
  tile.next_step = 4 * kWord;
}

void GemmTask::pack_rows(Span rows, const Part& part, float* out) {
  PackA pack;
  pack.words = cut_.words;
  pack.transposed = op_.transpose_a;
  pack.a = operands_.a +
           (op_.transpose_a ? part.element * op_.m + rows.begin : rows.begin * op_.k + part.element) * ab_bytes_;
  pack.stride = (op_.transpose_a ? op_.m : op_.k) * ab_bytes_;
  pack.steps = part.steps;
  pack.rows = rows.size;
  pack.out = out;
  tiles_.pack_a(pack);
  packed_a_ = out;
}

void GemmTask::pack_columns(Span columns, const Part& part) {
  packed_b_ = Workspace::here().b.get<float>((cut_.block_columns + tiles_.widths[0]) * cut_.steps.length);
  PackB pack;
  pack.words = cut_.words;
  pack.transposed = op_.transpose_b;
  pack.stride = (op_.transpose_b ? op_.k : op_.n) * ab_bytes_;
  pack.steps = part.steps;
  cut_into_panels(columns.size);
  for (int i = 0; i < panel_count_; i += static_cast<int>(pack.panels)) {
    const Panel& panel = panels_[i];
    const std::int64_t n = columns.begin + panel.column;
    pack.b = operands_.b + (op_.transpose_b ? n * op_.k + part.element : part.element * op_.n + n) * ab_bytes_;
    pack.columns = panel.columns;
    pack.width = tiles_.widths[panel.width];
    pack.panels = 1;
    while (i + pack.panels < panel_count_ && panels_[i + pack.panels].columns == panel.columns) ++pack.panels;
    pack.out = packed_b_ + panel.column * part.steps;
    tiles_.pack_b(pack);
  }
}

void GemmTask::widen_bias(Span columns) {
  float* const bias = Workspace::here().bias.get<float>(columns.size);
  if (op_.ab == DType::kF32) {
    std::copy_n(static_cast<const float*>(op_.bias) + columns.begin, columns.size, bias);
  } else if (op_.ab == DType::kBF16) {
    widen(static_cast<const bf16*>(op_.bias) + columns.begin, columns.size, bias);
  } else {
    widen(static_cast<const f16*>(op_.bias) + columns.begin, columns.size, bias);
  }
  bias_ = bias;
}

GemmTask::Part GemmTask::part(std::int64_t index) const {
  return {index, cut_.steps.begin(index) * step_elements_, cut_.steps.extent(index)};
}

// The widest panels. In place of a last wide one and a narrow one, two of the middle width: they are as fast.
GemmTask::Panel GemmTask::next_panel(std::int64_t column, std::int64_t columns) const {
  const std::int64_t left = columns - column, middle = tiles_.widths[1];
  int width = left > middle ? 0 : left > tiles_.widths[2] ? 1 : 2;
  if (left > tiles_.widths[0] && left <= 2 * middle) width = 1;
  return {column, std::min<std::int64_t>(left, tiles_.widths[width]), width};
}

void GemmTask::cut_into_panels(std::int64_t columns) {
  panel_count_ = 0;
  for (std::int64_t column = 0; column < columns; ++panel_count_) {
    panels_[panel_count_] = next_panel(column, columns);
    column += panels_[panel_count_].columns;
  }
}

std::int64_t GemmTask::whole_tiles(Span rows) const { return round_up<std::int64_t>(rows.size, tiles_.rows); }

float* GemmTask::room_for_rows(Span rows, std::int64_t steps) const {
  return Workspace::here().a.get<float>(whole_tiles(rows) * steps);
}

}  // namespace loom::kernels
