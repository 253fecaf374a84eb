// One task of a matrix product: a rectangle of C, computed in the calling thread. Private to engine/kernels.
#pragma once

#include <array>

#include "engine/kernels/gemm_cut.h"

namespace loom::kernels {

struct Span {
  std::int64_t begin = 0;
  std::int64_t size = 0;
};

class GemmTask {
 public:
  GemmTask(const Gemm& op, const GemmCut& cut, const GemmOperands& operands);

  // Rows and columns of C.
  void run(Span rows, Span columns);

 private:
  struct Panel {
    std::int64_t column = 0;  // of the block of columns
    std::int64_t columns = 0;
    int width = 0;  // index into TileSet
  };
  struct Part {  // of K
    std::int64_t index = 0;
    std::int64_t element = 0;
    std::int64_t steps = 0;
  };

  template <class Body>
  void each_block(Span columns, Body body) const;
  void run_with_sums_in_c(Span rows, Span columns);
  void run_with_own_sums(Span rows, Span columns);
  void multiply_part(Span rows, Span columns, const Part& part, float* sums);
  void multiply_rows_with_panels(Span rows, const Part& part, const GemmTile& first);
  GemmTile tile_of_rows(std::int64_t row, std::int64_t count, const Part& part, GemmTile tile) const;
  void prefetch_rows_behind(int panel, std::int64_t steps, GemmTile& tile) const;
  void pack_rows(Span rows, const Part& part, float* out);
  void pack_columns(Span columns, const Part& part);
  void widen_bias(Span columns);

  Part part(std::int64_t index) const;
  void cut_into_panels(std::int64_t columns);
  Panel next_panel(std::int64_t column, std::int64_t columns) const;
  float* room_for_rows(Span rows, std::int64_t steps) const;
  std::int64_t whole_tiles(Span rows) const;

  const Gemm& op_;
  const GemmCut& cut_;
  const TileSet& tiles_;
  const GemmOperands operands_;
  const std::int64_t ab_bytes_, c_bytes_, step_elements_;
  std::int64_t first_column_ = 0;  // of the task
  const float* bias_ = nullptr;    // of the first column
  float* packed_a_ = nullptr;
  float* packed_b_ = nullptr;
  std::array<Panel, kMostPanels> panels_;  // of the block of columns at hand
  int panel_count_ = 0;
};

}  // namespace loom::kernels
