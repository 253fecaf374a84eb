#include "engine/kernels/gemm_isa_avx512.h"

namespace loom::kernels {
namespace {

struct Avx512Bf16 : Avx512 {
  static LOOM_ALWAYS_INLINE F fma(F a, F b, F sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
};

constexpr int kRows = 8;
constexpr TilesOfWidth<Avx512Bf16, kRows, 3> kWide;
constexpr TilesOfWidth<Avx512Bf16, kRows, 2> kMiddle;
constexpr TilesOfWidth<Avx512Bf16, kRows, 1> kNarrow;

}  // namespace

extern const TileSet kAvx512Bf16 = {kRows,
                                    {48, 32, 16},
                                    {kWide.of_rows, kMiddle.of_rows, kNarrow.of_rows},
                                    false,
                                    &pack_a<Avx512Bf16, kRows>,
                                    &pack_b<Avx512Bf16>};

}  // namespace loom::kernels
