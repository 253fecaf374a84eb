#include "engine/kernels/gemm_isa_avx512.h"

namespace loom::kernels {
namespace {

struct Avx512Bf16 : Avx512 {
  static LOOM_ALWAYS_INLINE F fma(F a, F b, F sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  // The instruction flushes subnormal numbers: they are rare, so they take the other way.
  static LOOM_ALWAYS_INLINE void store16_part(void* to, F x, std::int64_t count, OutputType type) {
    constexpr int kSubnormal = 0x20;
    const bool is_plain = type == OutputType::kBf16 && count == kLanes && _mm512_fpclass_ps_mask(x, kSubnormal) == 0;
    if (!is_plain) return Avx512::store16_part(to, x, count, type);
    _mm256_storeu_si256(static_cast<__m256i*>(to), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
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
