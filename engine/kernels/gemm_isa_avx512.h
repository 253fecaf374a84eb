// AVX-512 for the templates of matrix products: for gemm_avx512*.cpp and gemm_amx.cpp, each of which compiles its own
// copy. Private to engine/kernels.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "engine/kernels/gemm_pack.h"

namespace loom::kernels {
namespace {

struct Avx512 {
  using F = __m512;
  static constexpr int kLanes = 16;

  static LOOM_ALWAYS_INLINE __mmask16 first(std::int64_t count) {
    return static_cast<__mmask16>((std::uint32_t{1} << count) - 1);
  }
  static LOOM_ALWAYS_INLINE F zero() { return _mm512_setzero_ps(); }
  static LOOM_ALWAYS_INLINE F load(const float* from) { return _mm512_loadu_ps(from); }
  static LOOM_ALWAYS_INLINE F load_part(const float* from, std::int64_t count) {
    return _mm512_maskz_loadu_ps(first(count), from);
  }
  static LOOM_ALWAYS_INLINE void store(float* to, F x) { _mm512_storeu_ps(to, x); }
  static LOOM_ALWAYS_INLINE void store_part(float* to, F x, std::int64_t count) {
    if (count == 8) {
      _mm256_storeu_ps(to, _mm512_castps512_ps256(x));
    } else {
      _mm512_mask_storeu_ps(to, first(count), x);
    }
  }
  static LOOM_ALWAYS_INLINE void store_halves(float* lower, float* upper, F x, F y) {
    store(lower, _mm512_shuffle_f32x4(x, y, 0x44));
    store(upper, _mm512_shuffle_f32x4(x, y, 0xee));
  }
  static LOOM_ALWAYS_INLINE F broadcast(const char* word) {
    float value;
    std::memcpy(&value, word, sizeof(value));
    return _mm512_set1_ps(value);
  }
  static LOOM_ALWAYS_INLINE F fma(F a, F b, F sum) { return _mm512_fmadd_ps(a, b, sum); }
  static LOOM_ALWAYS_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }

  static LOOM_ALWAYS_INLINE F as_f(__m512i x) { return _mm512_castsi512_ps(x); }
  static LOOM_ALWAYS_INLINE __m512i as_i(F x) { return _mm512_castps_si512(x); }

  static LOOM_ALWAYS_INLINE __m256i load_halves(const void* from, std::int64_t count) {
    return count == kLanes ? _mm256_loadu_si256(static_cast<const __m256i*>(from))
                           : _mm256_maskz_loadu_epi16(first(count), from);
  }
  static LOOM_ALWAYS_INLINE F widen_bf16(__m256i halves) {
    return as_f(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }

  template <Words kWords>
  static LOOM_ALWAYS_INLINE F along(const char* from, std::int64_t count) {
    if constexpr (kWords == Words::kBf16Widened) {
      return widen_bf16(load_halves(from, count));
    } else if constexpr (kWords == Words::kFp16Widened) {
      return _mm512_cvtph_ps(load_halves(from, count));
    } else {
      const float* words = reinterpret_cast<const float*>(from);
      return count == kLanes ? load(words) : load_part(words, count);
    }
  }
  template <Words kWords>
  static LOOM_ALWAYS_INLINE F across(const char* row, const char* next_row, std::int64_t count) {
    if constexpr (kWords == Words::kBf16Pairs) {
      const __m512i low = _mm512_cvtepu16_epi32(load_halves(row, count));
      const __m512i high = _mm512_cvtepu16_epi32(load_halves(next_row, count));
      return as_f(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    } else {
      return along<kWords>(row, count);
    }
  }

  static LOOM_ALWAYS_INLINE void transpose(F* x) {
    F y[16];
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {  // 4 x 4 blocks of words within 128-bit lanes
      const F a = _mm512_unpacklo_ps(x[i], x[i + 1]), b = _mm512_unpackhi_ps(x[i], x[i + 1]);
      const F c = _mm512_unpacklo_ps(x[i + 2], x[i + 3]), d = _mm512_unpackhi_ps(x[i + 2], x[i + 3]);
      y[i] = _mm512_shuffle_ps(a, c, 0x44);
      y[i + 1] = _mm512_shuffle_ps(a, c, 0xee);
      y[i + 2] = _mm512_shuffle_ps(b, d, 0x44);
      y[i + 3] = _mm512_shuffle_ps(b, d, 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {  // then the lanes themselves
      const F a = _mm512_shuffle_f32x4(y[i], y[i + 4], 0x88), b = _mm512_shuffle_f32x4(y[i], y[i + 4], 0xdd);
      const F c = _mm512_shuffle_f32x4(y[i + 8], y[i + 12], 0x88), d = _mm512_shuffle_f32x4(y[i + 8], y[i + 12], 0xdd);
      x[i] = _mm512_shuffle_f32x4(a, c, 0x88);
      x[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
      x[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
      x[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
  }

  // Rounds to nearest, ties to even; NaN stays NaN. In integers, as the instruction flushes subnormal numbers.
  static LOOM_ALWAYS_INLINE __m256i to_bf16(F value) {
    const __m512i word = as_i(value), upper = _mm512_srli_epi32(word, 16);
    const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(word, _mm512_set1_epi32(0x7fff)), odd);
    rounded = _mm512_srli_epi32(rounded, 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, upper, _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(rounded);
  }
  static LOOM_ALWAYS_INLINE F load16_part(const void* from, std::int64_t count, OutputType type) {
    const __m256i halves = _mm256_maskz_loadu_epi16(first(count), from);
    return type == OutputType::kBf16 ? widen_bf16(halves) : _mm512_cvtph_ps(halves);
  }
  static LOOM_ALWAYS_INLINE F round16(F x, OutputType type) {
    return type == OutputType::kBf16 ? widen_bf16(to_bf16(x))
                                     : _mm512_cvtph_ps(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  static LOOM_ALWAYS_INLINE void store16_part(void* to, F x, std::int64_t count, OutputType type) {
    const __m256i halves = type == OutputType::kBf16 ? to_bf16(x) : _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
    if (count == kLanes) {
      _mm256_storeu_si256(static_cast<__m256i*>(to), halves);
    } else {
      _mm256_mask_storeu_epi16(to, first(count), halves);
    }
  }
};

}  // namespace
}  // namespace loom::kernels
