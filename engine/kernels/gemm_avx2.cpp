#include <immintrin.h>

#include <cstring>

#include "engine/kernels/gemm_pack.h"

namespace loom::kernels {
namespace {

struct Avx2 {
  using F = __m256;
  static constexpr int kLanes = 8;

  static LOOM_ALWAYS_INLINE __m256i first(std::int64_t count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static LOOM_ALWAYS_INLINE F zero() { return _mm256_setzero_ps(); }
  static LOOM_ALWAYS_INLINE F load(const float* from) { return _mm256_loadu_ps(from); }
  static LOOM_ALWAYS_INLINE F load_part(const float* from, std::int64_t count) {
    return _mm256_maskload_ps(from, first(count));
  }
  static LOOM_ALWAYS_INLINE void store(float* to, F x) { _mm256_storeu_ps(to, x); }
  static LOOM_ALWAYS_INLINE void store_part(float* to, F x, std::int64_t count) {
    _mm256_maskstore_ps(to, first(count), x);
  }
  static LOOM_ALWAYS_INLINE F broadcast(const char* word) {
    float value;
    std::memcpy(&value, word, sizeof(value));
    return _mm256_set1_ps(value);
  }
  static LOOM_ALWAYS_INLINE F fma(F a, F b, F sum) { return _mm256_fmadd_ps(a, b, sum); }
  static LOOM_ALWAYS_INLINE F add(F a, F b) { return _mm256_add_ps(a, b); }

  static LOOM_ALWAYS_INLINE __m128i load_halves(const void* from, std::int64_t count) {
    if (count == kLanes) return _mm_loadu_si128(static_cast<const __m128i*>(from));
    std::uint16_t halves[kLanes] = {};
    std::memcpy(halves, from, static_cast<std::size_t>(count) * sizeof(std::uint16_t));
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(halves));
  }
  static LOOM_ALWAYS_INLINE F widen_bf16(__m128i halves) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }

  template <Words kWords>
  static LOOM_ALWAYS_INLINE F along(const char* from, std::int64_t count) {
    if constexpr (kWords == Words::kBf16Widened) {
      return widen_bf16(load_halves(from, count));
    } else if constexpr (kWords == Words::kFp16Widened) {
      return _mm256_cvtph_ps(load_halves(from, count));
    } else {
      const float* words = reinterpret_cast<const float*>(from);
      return count == kLanes ? load(words) : load_part(words, count);
    }
  }
  template <Words kWords>
  static LOOM_ALWAYS_INLINE F across(const char* row, const char* /*next_row*/, std::int64_t count) {
    return along<kWords>(row, count);
  }

  static LOOM_ALWAYS_INLINE void transpose(F* x) {
    F y[8];
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {  // 4 x 4 blocks of words within 128-bit lanes
      const F a = _mm256_unpacklo_ps(x[i], x[i + 1]), b = _mm256_unpackhi_ps(x[i], x[i + 1]);
      const F c = _mm256_unpacklo_ps(x[i + 2], x[i + 3]), d = _mm256_unpackhi_ps(x[i + 2], x[i + 3]);
      y[i] = _mm256_shuffle_ps(a, c, 0x44);
      y[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
      y[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
      y[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {  // then the lanes themselves
      x[i] = _mm256_permute2f128_ps(y[i], y[i + 4], 0x20);
      x[i + 4] = _mm256_permute2f128_ps(y[i], y[i + 4], 0x31);
    }
  }

  // Rounds to nearest, ties to even; NaN stays NaN.
  static LOOM_ALWAYS_INLINE __m128i to_bf16(F value) {
    const __m256i word = _mm256_castps_si256(value), upper = _mm256_srli_epi32(word, 16);
    const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(word, _mm256_set1_epi32(0x7fff)), odd), 16);
    const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const __m256i words = _mm256_blendv_epi8(rounded, quiet, is_nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  }
  static LOOM_ALWAYS_INLINE F load16_part(const void* from, std::int64_t count, OutputType type) {
    const __m128i halves = load_halves(from, count);
    return type == OutputType::kBf16 ? widen_bf16(halves) : _mm256_cvtph_ps(halves);
  }
  static LOOM_ALWAYS_INLINE F round16(F x, OutputType type) {
    return type == OutputType::kBf16 ? widen_bf16(to_bf16(x))
                                     : _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  static LOOM_ALWAYS_INLINE void store16_part(void* to, F x, std::int64_t count, OutputType type) {
    const __m128i halves = type == OutputType::kBf16 ? to_bf16(x) : _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
    if (count == kLanes) return _mm_storeu_si128(static_cast<__m128i*>(to), halves);
    std::memcpy(to, &halves, static_cast<std::size_t>(count) * sizeof(std::uint16_t));
  }
};

constexpr int kRows = 6;
constexpr TilesOfWidth<Avx2, kRows, 2> kWide;
constexpr TilesOfWidth<Avx2, kRows, 1> kNarrow;

}  // namespace

extern const TileSet kAvx2Fp32 = {kRows, {16, 8, 8},           {kWide.of_rows, kNarrow.of_rows, kNarrow.of_rows},
                                  false, &pack_a<Avx2, kRows>, &pack_b<Avx2>};

}  // namespace loom::kernels
