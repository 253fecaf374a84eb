// How our own matrix products are cut. Private to engine/kernels.
//
// Algorithm  C = op(A) . op(B) is cut into tasks, one rectangle of C each, for any thread. A task walks over blocks
//            of K and blocks of columns. It packs the block of B into panels, which stay in L2, and multiplies it
//            with the rows of the task, one register tile at a time. Rows of A are read in place if K is
//            contiguous and its elements are words as they are (fp32, pairs of bf16); otherwise they are packed, once
//            for all blocks of columns. Packing transposes and widens; no operand has a pass of its own before it.
// Tile       of registers: 8 x 48 words of C with AVX-512 (24 of 32 registers are sums), 6 x 16 with AVX2, 32 x 32
//            with AMX. The last columns take narrower panels, the last rows smaller tiles.
// K          in equal blocks of at most kMostSteps words: a function of K and the dtype alone. So the bits of an
//            element of C depend on its row of A, its column of B and K: not on M, N, the cut, caches, tasks or
//            threads.
// Columns    in equal blocks of at most kMostPanels panels and of at most three eighths of L2 at the length of the
//            block of K. L2 is read from the system.
// Rows       in blocks of all rows of the task, or of as many as kMostPackedBytes and kMostSumBytes hold.
// Tasks      as many as threads. Columns are cut, as every task packs its own block of B; rows are cut where A is
//            packed, and where columns are too few.
// Scratch    of a thread, kept between products: a block of B, packed rows (kMostPackedBytes), sums of 16-bit results
//            over several blocks of K (kMostSumBytes). It does not grow with the product.
// Limits     packing an element costs 0.3 to 0.6 cycles, multiplying it M / 32 (AVX-512): B costs 2 to 4 % at M = 512
//            and as much as the product itself at M = 16. Few rows of a B stored [N,K] change places with B
//            (gemm_few_rows.h). Few rows of a decoder that generates are multiply_rows()'s (row_products.h). fp64 is
//            Eigen's.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/kernels/gemm.h"
#include "engine/kernels/gemm_kernels.h"

namespace loom::kernels {

inline constexpr int kMostPanels = 64;  // of a block of columns
inline constexpr std::int64_t kMostPackedBytes = std::int64_t{16} << 20;
inline constexpr std::int64_t kMostSumBytes = std::int64_t{1} << 20;

// Consecutive pieces of a dimension, the last of which may be shorter.
struct Pieces {
  std::int64_t size = 0;
  std::int64_t length = 0;

  std::int64_t count() const { return (size + length - 1) / length; }
  std::int64_t begin(std::int64_t i) const { return i * length; }
  std::int64_t extent(std::int64_t i) const { return std::min(length, size - begin(i)); }
};

// Equal pieces of at most `most`, rounded up to a multiple.
Pieces equal_pieces(std::int64_t size, std::int64_t most, std::int64_t multiple);

struct GemmCut {
  Words words = Words::kFp32;
  const TileSet* tiles = nullptr;
  bool packs_a = false;
  Pieces steps;    // along K
  Pieces rows;     // of C, a task
  Pieces columns;  // of C, a task
  std::int64_t block_rows = 0;
  std::int64_t block_columns = 0;
  bool sums_stay_in_c = true;  // blocks of K enclose blocks of columns; else they are inside, with separate sums
};

struct GemmOperands {
  const char* a = nullptr;
  const char* b = nullptr;
  char* c = nullptr;
};

Words words_of(const Gemm& op, const GemmKernels& kernels);
// Words are the matrix's own elements: they can be read in place.
constexpr bool are_as_stored(Words words) { return words == Words::kFp32 || words == Words::kBf16Pairs; }

// op.m, op.n, op.k > 0; op.ab fp32, bf16 or fp16.
GemmCut cut_gemm(const Gemm& op, const GemmKernels& kernels, int threads);

}  // namespace loom::kernels
