// Vectors for attention: GCC vector types of this machine's width, and the two ways to multiply and add them. Private
// to engine/kernels.
//
// Arithmetic  Fp32, Fp64: one FMA a lane. Bf16Pairs: vdpbf16ps, a lane is a pair of bf16 along the summed dim, exact
//             products, fp32 sums; it exists only where the compiler targets AVX512-BF16. fp16, and bf16 whose pairs
//             are slow, are widened to Fp32.
// Words       unit: what one lane of an operand holds (a float, a double, a pair of bf16); kPack: elements of a unit.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "engine/core/dtype.h"
#include "engine/kernels/bf16_products.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#define LOOM_INLINE [[gnu::always_inline]] inline

namespace loom::kernels::attn {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
inline constexpr int kRegisters = 32;
#elif defined(__AVX__)
inline constexpr int kVectorBytes = 32;
inline constexpr int kRegisters = 16;
#else
inline constexpr int kVectorBytes = 16;
inline constexpr int kRegisters = 16;
#endif

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
};
template <class T>
using Vector = typename VectorOf<T>::type;
template <class T>
inline constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));

template <class T>
LOOM_INLINE Vector<T> load(const T* from) {
  Vector<T> v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}
template <class T>
LOOM_INLINE void store(T* to, Vector<T> v) {
  std::memcpy(to, &v, sizeof(v));
}
template <class T>
LOOM_INLINE Vector<T> broadcast(T value) {
  return value - Vector<T>{};  // value - 0: exact for every value, -0 included
}

LOOM_INLINE Vector<float> max(Vector<float> a, Vector<float> b) {
#if defined(__AVX512F__)
  return (Vector<float>)_mm512_max_ps((__m512)a, (__m512)b);  // b when either is NaN
#else
  return a > b ? a : b;
#endif
}
LOOM_INLINE Vector<double> max(Vector<double> a, Vector<double> b) {
#if defined(__AVX512F__)
  return (Vector<double>)_mm512_max_pd((__m512d)a, (__m512d)b);
#else
  return a > b ? a : b;
#endif
}

template <class T>
LOOM_INLINE T max_of(Vector<T> v) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) return _mm512_reduce_max_ps((__m512)v);
#endif
  T best = v[0];
  for (int i = 1; i < kLanes<T>; ++i) best = v[i] > best ? v[i] : best;
  return best;
}
// Halves added to halves.
template <class T>
LOOM_INLINE T sum_of(Vector<T> v) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) return _mm512_reduce_add_ps((__m512)v);
#endif
  for (int width = kLanes<T> / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) v[i] += v[i + width];
  }
  return v[0];
}

// maxima[i] = max_of(rows[i]).
template <class T, int kRows>
LOOM_INLINE void max_of_rows(const Vector<T> (&rows)[kRows], T* maxima) {
  for (int i = 0; i < kRows; ++i) maxima[i] = max_of<T>(rows[i]);
}
#if defined(__AVX512F__)
// Four rows become one vector whose 128-bit quarters hold, in order, partial maxima of the four.
LOOM_INLINE __m512 merge_rows(const Vector<float>* rows) {
  const __m512 a = (__m512)rows[0], b = (__m512)rows[1], c = (__m512)rows[2], d = (__m512)rows[3];
  const __m512d ab = (__m512d)_mm512_max_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512d cd = (__m512d)_mm512_max_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  return _mm512_max_ps((__m512)_mm512_unpacklo_pd(ab, cd), (__m512)_mm512_unpackhi_pd(ab, cd));
}
LOOM_INLINE void max_of_rows(const Vector<float> (&rows)[8], float* maxima) {
  const __m512 low = merge_rows(rows), high = merge_rows(rows + 4);
  const __m512 halves = _mm512_max_ps(_mm512_shuffle_f32x4(low, high, 0x44), _mm512_shuffle_f32x4(low, high, 0xee));
  const __m512 swapped = _mm512_shuffle_f32x4(halves, halves, 0xb1);
  const __m512 all = _mm512_max_ps(halves, swapped);  // quarters: low, low, high, high
  _mm256_storeu_ps(maxima, _mm512_castps512_ps256(_mm512_shuffle_f32x4(all, all, 0x08)));
}
#endif

// Polynomials for 2^r, exact at r = 0: on [0, 1] with relative error below 8e-6 (for bf16) and 3e-7, and on [-1/2, 1/2]
// with 5e-18 (Chebyshev interpolation).
inline constexpr float kExp2Coarse[] = {1.0f, 0.693133993f, 0.240647048f, 0.0534410293f, 0.0127631139f};
inline constexpr float kExp2Fine[] = {1.0f, 0.693147568f, 0.240207194f, 0.0556570544f, 0.0091993876f, 0.00178836874f};
inline constexpr double kExp2Double[] = {1.0,
                                         0.69314718055994529,
                                         0.24022650695910158,
                                         0.055504108664821625,
                                         0.0096181291075872564,
                                         0.0013333558146406471,
                                         0.00015403530463724353,
                                         1.5252733841556773e-05,
                                         1.3215432535912375e-06,
                                         1.0178057087733941e-07,
                                         7.0741942972885211e-09,
                                         4.4558179083360645e-10};

template <class T, int kCount>
LOOM_INLINE Vector<T> polynomial(const T (&coefficients)[kCount], Vector<T> x) {
  Vector<T> sum = broadcast(coefficients[kCount - 1]);
#pragma GCC unroll 16
  for (int i = kCount - 2; i >= 0; --i) sum = sum * x + coefficients[i];
  return sum;
}

#if defined(__AVX512DQ__)
// As exp2() below, with coefficients that stay in memory: for loops without free registers.
template <int kCount>
LOOM_INLINE Vector<float> exp2_from_memory(const float (&coefficients)[kCount], Vector<float> x) {
  const float* at = coefficients;
  asm("" : "+r"(at));  // else they were loaded once, before the loop
  const auto fraction = (Vector<float>)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  Vector<float> sum = broadcast(at[kCount - 1]);
#pragma GCC unroll 16
  for (int i = kCount - 2; i >= 0; --i) sum = sum * fraction + at[i];
  return (Vector<float>)_mm512_scalef_ps((__m512)sum, (__m512)x);
}
#endif

// 2^x lane by lane: 0 far below the least normal number (or just below it), NaN for NaN. Precondition: x is not above
// the largest exponent.
template <int kCount>
LOOM_INLINE Vector<float> exp2(const float (&coefficients)[kCount], Vector<float> x) {
#if defined(__AVX512DQ__)
  const __m512 fraction = _mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // 0 for -infinity
  return (Vector<float>)_mm512_scalef_ps((__m512)polynomial(coefficients, (Vector<float>)fraction), (__m512)x);
#else
  const Vector<float> clamped = x < -126.0f ? broadcast(-126.0f) : x;
  const Vector<float> shifted = (clamped - 0.5f) + 0x1.8p23f;  // rounds to an integer in the low bits
  const Vector<float> power = polynomial(coefficients, clamped - (shifted - 0x1.8p23f));
  const Vector<std::int32_t> exponent = ((Vector<std::int32_t>)shifted - 0x4b400000 + 127) << 23;
  return x < -126.0f ? Vector<float>{} : power * (Vector<float>)exponent;
#endif
}
LOOM_INLINE Vector<double> exp2(const double (&coefficients)[12], Vector<double> x) {
  const Vector<double> clamped = x < -1022.0 ? broadcast(-1022.0) : x;
  const Vector<double> shifted = clamped + 0x1.8p52;
  const Vector<double> power = polynomial(coefficients, clamped - (shifted - 0x1.8p52));
  const Vector<std::int64_t> exponent = ((Vector<std::int64_t>)shifted - 0x4338000000000000 + 1023) << 52;
  return x < -1022.0 ? Vector<double>{} : power * (Vector<double>)exponent;
}

// p of log(1 + r) = r - r^2 / 2 + r^3 p(r) for 1 + r in [1/sqrt(2), sqrt(2)], with relative error below 2e-8 (Chebyshev
// interpolation).
inline constexpr float kLog[] = {0.333333313f, -0.250003070f, 0.200010449f, -0.166412816f,
                                 0.142144963f, -0.129981831f, 0.126223192f, -0.0790274367f};

// Natural logarithms of numbers from the least normal one on; infinity and NaN as they are.
LOOM_INLINE Vector<float> log(Vector<float> x) {
  constexpr float kLn2High = 0x1.62ep-1f, kLn2Low = 0x1.0bfbe8p-15f;  // high times an exponent is exact
  const auto bits = (Vector<std::int32_t>)x;
  const Vector<std::int32_t> exponent = (bits - 0x3f3504f3) >> 23;
  const Vector<float> r = (Vector<float>)(bits - (exponent << 23)) - 1.0f;
  const Vector<float> power = __builtin_convertvector(exponent, Vector<float>);
  const Vector<float> tail = power * kLn2Low + r * r * (r * polynomial(kLog, r) - 0.5f);
  const Vector<float> value = power * kLn2High + (r + tail);
  return x < std::numeric_limits<float>::infinity() ? value : x;
}
LOOM_INLINE Vector<double> log(Vector<double> x) {
  for (int i = 0; i < kLanes<double>; ++i) x[i] = std::log(x[i]);
  return x;
}

struct Fp32 {
  using Acc = float;
  using Unit = float;
  static constexpr int kPack = 1;
  LOOM_INLINE static Vector<float> dot(Vector<float> sum, Vector<float> a, Vector<float> b) { return sum + a * b; }
  LOOM_INLINE static Vector<float> exp2(Vector<float> x) { return attn::exp2(kExp2Fine, x); }
#if defined(__AVX512DQ__)
  LOOM_INLINE static Vector<float> exp2_beside(Vector<float> x) { return exp2_from_memory(kExp2Fine, x); }
#endif
};

struct Fp64 {
  using Acc = double;
  using Unit = double;
  static constexpr int kPack = 1;
  LOOM_INLINE static Vector<double> dot(Vector<double> sum, Vector<double> a, Vector<double> b) { return sum + a * b; }
  LOOM_INLINE static Vector<double> exp2(Vector<double> x) { return attn::exp2(kExp2Double, x); }
};

#if defined(__AVX512BF16__)
struct Bf16Pairs {
  using Acc = float;
  using Unit = std::uint32_t;
  static constexpr int kPack = 2;
  LOOM_INLINE static Vector<float> dot(Vector<float> sum, Vector<std::uint32_t> a, Vector<std::uint32_t> b) {
    return (Vector<float>)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  }
  LOOM_INLINE static Vector<float> exp2(Vector<float> x) { return attn::exp2(kExp2Coarse, x); }
  LOOM_INLINE static Vector<float> exp2_beside(Vector<float> x) { return exp2_from_memory(kExp2Coarse, x); }
};
#else
using Bf16Pairs = Fp32;
#endif

#if defined(__AVX512BF16__)
// Neighbouring lanes as pairs: kLanes / 2 units.
LOOM_INLINE void store_pairs(std::uint32_t* to, Vector<float> v) {
  const __m256bh pairs = _mm512_cvtneps_pbh((__m512)v);
  std::memcpy(to, &pairs, sizeof(pairs));
}
// Lane i of `low` and of `high` as pair i.
LOOM_INLINE Vector<std::uint32_t> interleave_pairs(Vector<float> low, Vector<float> high) {
  const __m256i low_half = (__m256i)_mm512_cvtneps_pbh((__m512)low);
  const __m256i high_half = (__m256i)_mm512_cvtneps_pbh((__m512)high);
  return (Vector<std::uint32_t>)_mm512_or_si512(_mm512_cvtepu16_epi32(low_half),
                                                _mm512_slli_epi32(_mm512_cvtepu16_epi32(high_half), 16));
}
#endif

// Calls body(arithmetic) with the arithmetic for tensors of T.
template <class T, class Body>
void with_arithmetic(Bf16Products products, Body&& body) {
  if constexpr (std::is_same_v<T, double>) {
    body(Fp64{});
  } else if constexpr (std::is_same_v<T, bf16> && !std::is_same_v<Bf16Pairs, Fp32>) {
    products == Bf16Products::kPairs ? body(Bf16Pairs{}) : body(Fp32{});
  } else {
    body(Fp32{});
  }
}

}  // namespace loom::kernels::attn
