// An instruction set's part of our own matrix products: register tiles and packing. Private to engine/kernels.
//
// Step      the elements that a tile multiplies at once along K: one fp32 element, or a pair of bf16 elements. A packed
//           operand consists of 32-bit words, one per step.
// Panel     columns [n, n + width) of op(B): word (step, column) is at step * width + column. Missing columns are zero.
//           A panel of A has the rows of one tile: word (step, row) is at step * rows + row, or, where A is stored
//           [M,K] or the set reads A along K, at row * steps + step.
// Bits      an element of C is the sum over its steps in order, one fused multiply-add each, from zero; sums of blocks
//           of K are added in order. fp32 gives the same bits with every set; a pair of bf16 is summed as the
//           processor's instruction does it.
// Threads   no state: every function may run on any thread.
// Source    gemm_avx2.cpp, gemm_avx512.cpp, gemm_avx512_bf16.cpp and gemm_amx.cpp, each compiled for its instruction
//           set (nothing of them is inline elsewhere), chosen in gemm_sets_x86.cpp; gemm_sets_none.cpp on other
//           processors.
#pragma once

#include <cstdint>

namespace loom::kernels {

// How operands in memory become words.
enum class Words : std::uint8_t {
  kFp32,         // as they are
  kBf16Pairs,    // two neighbours along K
  kBf16Widened,  // one bf16 as fp32
  kFp16Widened,
};

enum class OutputType : std::uint8_t { kFp32, kBf16, kFp16 };

// One register tile of C over one block of K. Distances between rows of A are in bytes, all others in elements.
struct GemmTile {
  std::int64_t steps = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;  // at most the panel's width
  const char* a = nullptr;   // word (row, step) is at a + row * a_row + step * a_step
  std::int64_t a_row = 0;
  std::int64_t a_step = 0;
  const char* next_a = nullptr;  // two rows to prefetch, next_step bytes every four steps
  std::int64_t next_row = 0;
  std::int64_t next_step = 0;
  const float* b = nullptr;     // a panel
  const float* sums = nullptr;  // of the blocks of K before this one, or null
  std::int64_t sums_row = 0;
  const float* bias = nullptr;  // one a column, or null
  void* c = nullptr;            // may be `sums`
  std::int64_t c_row = 0;
  OutputType type = OutputType::kFp32;
  bool adds_c = false;        // C += in place of C =; an fp32 C is `sums` unless rounds_first
  bool rounds_first = false;  // to C's type, before C is added
};

// Panels of B, one behind another, from B stored [K,N] (transposed: [N,K]).
struct PackB {
  Words words = Words::kFp32;
  bool transposed = false;
  const char* b = nullptr;  // element (first k, first column)
  std::int64_t stride = 0;  // bytes between rows of the stored matrix
  std::int64_t steps = 0;
  std::int64_t panels = 1;   // more than one: all of them whole
  std::int64_t columns = 0;  // of a panel
  std::int64_t width = 0;
  float* out = nullptr;
};

// Panels of A, one behind another, from A stored [M,K] (transposed: [K,M]). Rows that the last panel misses are zero,
// or not written where A is stored [M,K].
struct PackA {
  Words words = Words::kFp32;
  bool transposed = false;
  const char* a = nullptr;  // element (first row, first k)
  std::int64_t stride = 0;
  std::int64_t steps = 0;
  std::int64_t rows = 0;
  float* out = nullptr;
};

// Most steps in a block of K.
inline constexpr std::int64_t kMostSteps = 512;

inline constexpr int kPanelWidths = 3;

struct TileSet {
  using Multiply = void (*)(const GemmTile& tile);

  int rows;                                // of a whole tile
  int widths[kPanelWidths];                // of panels, from wide to narrow
  const Multiply* multiply[kPanelWidths];  // [rows - 1], of tiles of a width
  bool packs_along_k;                      // the panels of A
  void (*pack_a)(const PackA& op);
  void (*pack_b)(const PackB& op);
};

struct GemmKernels {
  const char* name;
  const TileSet* fp32;
  const TileSet* bf16;  // of pairs; null: bf16 is widened
};

// Those that this processor can run, the best last; none where none is compiled in.
struct GemmKernelSets {
  const GemmKernels* const* first;
  int count;
};
GemmKernelSets gemm_kernel_sets();

}  // namespace loom::kernels
