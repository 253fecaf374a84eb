// Vectors of 16 fp32 lanes for the fused kernels: memory access with conversion, exponentials, sums in a fixed
// order. Private to engine.
//
// Every function exists for F32x16 and, with the same meaning, for one double, so one kernel body serves fp32, bf16,
// fp16 (16 lanes at a time) and fp64 (a scalar loop).
//
// Lanes        kernels walk a row with for_packs(), which hands out whole packs (Full) and at most one partial pack
//              (Part) at the end. Loading a Part fills the missing lanes with zero; storing one leaves memory behind
//              it alone.
// Rounding     to bf16 and fp16 as in engine/core/dtype.h: to nearest, ties to even, NaN stays NaN (fp16 NaNs come
//              quiet).
// Accuracy     exp, sigmoid, tanh and erf: a few units in the last place of fp32; NaN and infinities as in <cmath>.
//              exp2, exp_to<bf16> and sigmoid_to<bf16> have fewer bits, as noted there.
// Portability  GCC vector extensions; what they lack is chosen by instruction set here and nowhere else.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "engine/core/dtype.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define LOOM_INLINE [[gnu::always_inline]] inline

namespace loom::kernels::simd {

using F32x16 = float __attribute__((vector_size(64)));
using I32x16 = std::int32_t __attribute__((vector_size(64)));
using U32x16 = std::uint32_t __attribute__((vector_size(64)));
using U16x16 = std::uint16_t __attribute__((vector_size(32)));
using U16x32 = std::uint16_t __attribute__((vector_size(64)));
using F32x4 = float __attribute__((vector_size(16)));
using F32x8 = float __attribute__((vector_size(32)));
using F64x8 = double __attribute__((vector_size(64)));

#if defined(__AVX512F__)
// The zero-masked forms are used with this mask: the plain ones read an undefined register, which g++ 12 warns about.
inline constexpr __mmask16 kAll = 0xffff;
#endif

// The type in which element type T is computed.
template <class T>
struct Arithmetic {
  using Scalar = float;
  using Pack = F32x16;
};
template <>
struct Arithmetic<double> {
  using Scalar = double;
  using Pack = double;
};
template <class T>
using Scalar = typename Arithmetic<T>::Scalar;
template <class T>
using Pack = typename Arithmetic<T>::Pack;
template <class V>
inline constexpr std::int64_t lanes = std::is_same_v<V, double> ? 1 : 16;

template <class V>
LOOM_INLINE V splat(double value) {
  if constexpr (std::is_same_v<V, double>) {
    return value;
  } else {
    const auto s = static_cast<float>(value);
    return V{s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s};
  }
}

// ---- Conversion ---------------------------------------------------------------------------------------------------

LOOM_INLINE F32x16 widen(U16x16 bits, bf16 /*tag*/) {
#if defined(__AVX512F__)
  const auto words = std::bit_cast<U32x16>(_mm512_maskz_cvtepu16_epi32(kAll, std::bit_cast<__m256i>(bits)));
#else
  const auto words = __builtin_convertvector(bits, U32x16);
#endif
  return std::bit_cast<F32x16>(words << 16);
}

// In integers, for every value.
LOOM_INLINE U16x16 narrow_any(F32x16 value) {
  const auto word = std::bit_cast<U32x16>(value);
  const U32x16 upper = word >> 16;
  const U32x16 rounded = (word + 0x7fffu + (upper & 1u)) >> 16;
  return __builtin_convertvector(value != value ? upper | 0x40u : rounded, U16x16);
}

LOOM_INLINE U16x16 narrow(F32x16 value, bf16 /*tag*/) {
#if defined(__AVX512BF16__) && defined(__AVX512DQ__)
  // The instruction flushes subnormal numbers to zero: they are rare, so they take the other way.
  constexpr int kSubnormal = 0x20;
  const auto v = std::bit_cast<__m512>(value);
  if (_mm512_fpclass_ps_mask(v, kSubnormal) == 0) [[likely]]
    return std::bit_cast<U16x16>(_mm512_cvtneps_pbh(v));
#endif
  return narrow_any(value);
}

// Two packs, the first in the lower half.
LOOM_INLINE U16x32 narrow_two(F32x16 first, F32x16 second, bf16 /*tag*/) {
#if defined(__AVX512BF16__) && defined(__AVX512DQ__)
  constexpr int kSubnormal = 0x20;
  const auto a = std::bit_cast<__m512>(first), b = std::bit_cast<__m512>(second);
  if (_kortestz_mask16_u8(_mm512_fpclass_ps_mask(a, kSubnormal), _mm512_fpclass_ps_mask(b, kSubnormal))) [[likely]]
    return std::bit_cast<U16x32>(_mm512_cvtne2ps_pbh(b, a));
#endif
  return std::bit_cast<U16x32>(std::array{narrow_any(first), narrow_any(second)});
}

LOOM_INLINE F32x16 widen(U16x16 bits, f16 /*tag*/) {
#if defined(__AVX512F__)
  return std::bit_cast<F32x16>(_mm512_maskz_cvtph_ps(kAll, std::bit_cast<__m256i>(bits)));
#elif defined(__F16C__)
  struct Halves {
    __m128i lower, upper;
  };
  const auto of = std::bit_cast<Halves>(bits);
  return std::bit_cast<F32x16>(std::array{_mm256_cvtph_ps(of.lower), _mm256_cvtph_ps(of.upper)});
#else
  F32x16 value;
  for (int lane = 0; lane < 16; ++lane) value[lane] = static_cast<float>(std::bit_cast<f16>(std::uint16_t{bits[lane]}));
  return value;
#endif
}

LOOM_INLINE U16x16 narrow(F32x16 value, f16 /*tag*/) {
#if defined(__AVX512F__)
  return std::bit_cast<U16x16>(_mm512_maskz_cvtps_ph(kAll, std::bit_cast<__m512>(value), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  struct Halves {
    __m256 lower, upper;
  };
  const auto of = std::bit_cast<Halves>(value);
  return std::bit_cast<U16x16>(std::array{_mm256_cvtps_ph(of.lower, _MM_FROUND_TO_NEAREST_INT),
                                          _mm256_cvtps_ph(of.upper, _MM_FROUND_TO_NEAREST_INT)});
#else
  U16x16 bits;
  for (int lane = 0; lane < 16; ++lane) bits[lane] = f16(value[lane]).bits;
  return bits;
#endif
}

LOOM_INLINE U16x32 narrow_two(F32x16 first, F32x16 second, f16 tag) {
  return std::bit_cast<U16x32>(std::array{narrow(first, tag), narrow(second, tag)});
}

// fp32 value that rounds to 16 bits as `value` itself would: truncated, with a sticky last bit (round to odd).
inline float sticky_float(double value) {
  const auto nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || value != value || std::isinf(nearest)) return nearest;
  const auto word = std::bit_cast<std::uint32_t>(nearest);
  const bool away = std::abs(static_cast<double>(nearest)) > std::abs(value);
  return std::bit_cast<float>((away ? word - 1 : word) | 1u);
}

template <class T>
LOOM_INLINE double to_double(T value) {
  if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16>) {
    return static_cast<double>(static_cast<float>(value));
  } else {
    return static_cast<double>(value);
  }
}
template <class T>
LOOM_INLINE T from_double(double value) {
  if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16>) {
    return T(sticky_float(value));
  } else {
    return static_cast<T>(value);
  }
}

// ---- Memory -------------------------------------------------------------------------------------------------------

// A whole pack, or its first `count` lanes.
struct Full {};
struct Part {
  std::int64_t count;
};

// Calls body(first element, Full or Part) over [0, elems).
template <class V, class Body>
LOOM_INLINE void for_packs(std::int64_t elems, Body&& body) {
  std::int64_t i = 0;
  for (; i + lanes<V> <= elems; i += lanes<V>) body(i, Full{});
  if (i < elems) body(i, Part{elems - i});
}

template <class V, class T>
LOOM_INLINE V load(const T* from, Full = {}) {
  if constexpr (std::is_same_v<V, double>) {
    return to_double(*from);
  } else if constexpr (std::is_same_v<T, float>) {
    F32x16 value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  } else if constexpr (std::is_same_v<T, double>) {
    F32x16 value;
    for (int lane = 0; lane < 16; ++lane) value[lane] = static_cast<float>(from[lane]);
    return value;
  } else {
    U16x16 bits;
    std::memcpy(&bits, from, sizeof(bits));
    return widen(bits, T{});
  }
}
template <class V, class T>
LOOM_INLINE V load(const T* from, Part part) {
  T whole[lanes<V>] = {};
  std::memcpy(whole, from, static_cast<std::size_t>(part.count) * sizeof(T));
  return load<V>(whole);
}

template <class T, class V>
LOOM_INLINE void store(T* to, V value, Full = {}) {
  if constexpr (std::is_same_v<V, double>) {
    *to = from_double<T>(value);
  } else if constexpr (std::is_same_v<T, float>) {
    std::memcpy(to, &value, sizeof(value));
  } else {
    const U16x16 bits = narrow(value, T{});
    std::memcpy(static_cast<void*>(to), &bits, sizeof(bits));
  }
}
template <class T, class V>
LOOM_INLINE void store(T* to, V value, Part part) {
  T whole[lanes<V>];
  store(whole, value);
  std::memcpy(static_cast<void*>(to), whole, static_cast<std::size_t>(part.count) * sizeof(T));
}

// Two packs behind one another.
template <class T, class V>
LOOM_INLINE void store_two(T* to, V first, V second) {
  if constexpr (std::is_same_v<V, double> || sizeof(T) != 2) {
    store(to, first);
    store(to + lanes<V>, second);
  } else {
    const U16x32 bits = narrow_two(first, second, T{});
    std::memcpy(static_cast<void*>(to), &bits, sizeof(bits));
  }
}

// Asks for the line `ahead_bytes` behind `from`, which need not exist: hardware prefetchers stop at the end of a page.
// Level 1 for a stream, level 2 for data that is read again after a whole row.
inline constexpr std::ptrdiff_t kAheadBytes = 2048;
template <int kLevel = 1>
LOOM_INLINE void prefetch_ahead(const void* from, std::ptrdiff_t ahead_bytes = kAheadBytes) {
  constexpr int kLocality = 4 - kLevel;
  __builtin_prefetch(reinterpret_cast<const void*>(std::bit_cast<std::intptr_t>(from) + ahead_bytes), 0, kLocality);
}

// Non-temporal stores: past the caches, without reading the line first. `to` is aligned to the pack.
LOOM_INLINE void stream_32_bytes(void* to, const void* from) {
#if defined(__AVX__)
  _mm256_stream_si256(static_cast<__m256i*>(to), _mm256_loadu_si256(static_cast<const __m256i*>(from)));
#elif defined(__SSE2__)
  for (int i = 0; i < 2; ++i) {
    _mm_stream_si128(static_cast<__m128i*>(to) + i, _mm_loadu_si128(static_cast<const __m128i*>(from) + i));
  }
#else
  std::memcpy(to, from, 32);
#endif
}
LOOM_INLINE void stream_64_bytes(void* to, const void* from) {
#if defined(__AVX512F__)
  _mm512_stream_si512(static_cast<__m512i*>(to), _mm512_loadu_si512(from));
#else
  stream_32_bytes(to, from);
  stream_32_bytes(static_cast<char*>(to) + 32, static_cast<const char*>(from) + 32);
#endif
}
LOOM_INLINE void stream_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// How results reach memory: one pack, or two behind one another. Each tile ends with finish().
struct CachedStore {
  template <class T, class V>
  LOOM_INLINE void two(T* to, V first, V second) const {
    store_two(to, first, second);
  }
  template <class T, class V, class Count>
  LOOM_INLINE void operator()(T* to, V value, Count count) const {
    store(to, value, count);
  }
  LOOM_INLINE void finish() const {}
};
struct StreamStore {
  template <class T, class V>
  LOOM_INLINE void two(T* to, V first, V second) const {
    if constexpr (std::is_same_v<V, double>) {
      store_two(to, first, second);
    } else if constexpr (sizeof(T) == 4) {
      stream_64_bytes(to, &first);
      stream_64_bytes(to + lanes<V>, &second);
    } else {
      const U16x32 bits = narrow_two(first, second, T{});
      stream_64_bytes(to, &bits);
    }
  }
  template <class T, class V>
  LOOM_INLINE void operator()(T* to, V value, Full) const {
    if constexpr (std::is_same_v<V, double>) {
      store(to, value);
    } else if constexpr (sizeof(T) == 4) {
      stream_64_bytes(to, &value);
    } else {
      const U16x16 bits = narrow(value, T{});
      stream_32_bytes(to, &bits);
    }
  }
  template <class T, class V>
  LOOM_INLINE void operator()(T* to, V value, Part part) const {
    store(to, value, part);
  }
  LOOM_INLINE void finish() const { stream_fence(); }
};

// Outputs at least this big are streamed: they would leave the caches before anyone reads them.
inline constexpr std::int64_t kStreamBytes = std::int64_t{32} << 20;

// Whether `rows` rows of `row_bytes` at `to` should and may be streamed.
inline bool streams(const void* to, std::int64_t rows, std::int64_t row_bytes) {
  return rows * row_bytes >= kStreamBytes && std::bit_cast<std::uintptr_t>(to) % 64 == 0 &&
         (rows == 1 || row_bytes % 64 == 0);
}
// Calls body(StreamStore) or body(CachedStore).
template <class Body>
void with_store(bool streaming, Body&& body) {
  if (streaming) {
    body(StreamStore{});
  } else {
    body(CachedStore{});
  }
}

// Writes value(i, Full or Part) to to[i] for all i < elems, four whole packs at a time while there are four: the
// processor works on one while another waits for its results.
template <class V, class T, class Put, class Value>
LOOM_INLINE void put_packs(std::int64_t elems, T* to, Put put, Value&& value) {
  std::int64_t i = 0;
  for (; i + 4 * lanes<V> <= elems; i += 4 * lanes<V>) {
    const V first = value(i, Full{});
    const V second = value(i + lanes<V>, Full{});
    const V third = value(i + 2 * lanes<V>, Full{});
    const V fourth = value(i + 3 * lanes<V>, Full{});
    put.two(to + i, first, second);
    put.two(to + i + 2 * lanes<V>, third, fourth);
  }
  for (; i + 2 * lanes<V> <= elems; i += 2 * lanes<V>) {
    const V first = value(i, Full{});
    const V second = value(i + lanes<V>, Full{});
    put.two(to + i, first, second);
  }
  for (; i + lanes<V> <= elems; i += lanes<V>) put(to + i, value(i, Full{}), Full{});
  if (i < elems) put(to + i, value(i, Part{elems - i}), Part{elems - i});
}

// The same for two outputs; value(i, ...) is an array of two packs.
template <class V, class T, class Put, class Value>
LOOM_INLINE void put_packs(std::int64_t elems, T* to, T* beside, Put put, Value&& value) {
  std::int64_t i = 0;
  for (; i + 2 * lanes<V> <= elems; i += 2 * lanes<V>) {
    const std::array<V, 2> first = value(i, Full{});
    const std::array<V, 2> second = value(i + lanes<V>, Full{});
    put.two(to + i, first[0], second[0]);
    put.two(beside + i, first[1], second[1]);
  }
  const auto one = [&](auto part) {
    const std::array<V, 2> last = value(i, part);
    put(to + i, last[0], part);
    put(beside + i, last[1], part);
  };
  for (; i + lanes<V> <= elems; i += lanes<V>) one(Full{});
  if (i < elems) one(Part{elems - i});
}

// ---- Arithmetic ---------------------------------------------------------------------------------------------------

// The larger, the smaller; `b` where one is NaN.
LOOM_INLINE double max(double a, double b) { return a > b ? a : b; }
LOOM_INLINE F32x16 max(F32x16 a, F32x16 b) {
#if defined(__AVX512F__)
  return std::bit_cast<F32x16>(_mm512_maskz_max_ps(kAll, std::bit_cast<__m512>(a), std::bit_cast<__m512>(b)));
#else
  return a > b ? a : b;
#endif
}
LOOM_INLINE F32x16 min(F32x16 a, F32x16 b) {
#if defined(__AVX512F__)
  return std::bit_cast<F32x16>(_mm512_maskz_min_ps(kAll, std::bit_cast<__m512>(a), std::bit_cast<__m512>(b)));
#else
  return a < b ? a : b;
#endif
}

LOOM_INLINE double sqrt(double value) { return std::sqrt(value); }
LOOM_INLINE F32x16 sqrt(F32x16 value) {
#if defined(__AVX512F__)
  return std::bit_cast<F32x16>(_mm512_maskz_sqrt_ps(kAll, std::bit_cast<__m512>(value)));
#else
  for (int lane = 0; lane < 16; ++lane) value[lane] = std::sqrt(value[lane]);
  return value;
#endif
}

// value * 2^exponent for whole exponents in [-150, 129].
LOOM_INLINE F32x16 times_power_of_two(F32x16 value, F32x16 exponent, I32x16 whole) {
#if defined(__AVX512F__)
  (void)whole;
  return std::bit_cast<F32x16>(
      _mm512_maskz_scalef_ps(kAll, std::bit_cast<__m512>(value), std::bit_cast<__m512>(exponent)));
#else
  (void)exponent;
  const I32x16 first = whole >> 1;
  const I32x16 second = whole - first;
  return value * std::bit_cast<F32x16>((first + 127) << 23) * std::bit_cast<F32x16>((second + 127) << 23);
#endif
}

// x = n ln 2 + r with whole n and |r| <= ln 2 / 2, and e^r - 1 as its Taylor polynomial of degree 7 (error 5e-9).
struct ReducedExp {
  F32x16 n;
  I32x16 whole;
  F32x16 expm1_of_r;
};
LOOM_INLINE ReducedExp reduce_exp(F32x16 x) {
  constexpr float kToInteger = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const F32x16 shifted = x * 1.44269504f + kToInteger;
  const F32x16 n = shifted - kToInteger;
  const F32x16 r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  const F32x16 r2 = r * r;
  const F32x16 p23 = 0.5f + r * 0.166666667f;
  const F32x16 p45 = 0.0416666667f + r * 0.00833333333f;
  const F32x16 p67 = 0.00138888889f + r * 0.000198412698f;
  const F32x16 tail = p23 + r2 * (p45 + r2 * p67);
  return {n, std::bit_cast<I32x16>(shifted) - std::bit_cast<std::int32_t>(kToInteger), r + r2 * tail};
}

// e^r as a minimax polynomial (2^-28).
LOOM_INLINE F32x16 exp(F32x16 x) {
  constexpr float kToInteger = 12582912.0f;
  x = min(splat<F32x16>(89.0), max(splat<F32x16>(-104.0), x));
  const F32x16 shifted = x * 1.44269504f + kToInteger;
  const F32x16 n = shifted - kToInteger;
  const F32x16 r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  const F32x16 p =
      1.0f + r * (1.0f + r * (0.49999994f +
                              r * (0.166665211f + r * (0.041668389f + r * (0.00836871658f + r * 0.00138145988f)))));
  return times_power_of_two(p, n, std::bit_cast<I32x16>(shifted) - std::bit_cast<std::int32_t>(kToInteger));
}
LOOM_INLINE double exp(double x) { return std::exp(x); }

// 2^x for results of fewer bits than fp32: a minimax polynomial of the fraction x - floor(x), exact at whole numbers.
// Relative error 2^-18.3 by degree 4, 2^-22.3 by degree 5, beside the rounding of x. Subnormal results where the
// processor scales by powers of two, else 0.
template <int kDegree>
LOOM_INLINE F32x16 exp2(F32x16 x) {
  static_assert(kDegree == 4 || kDegree == 5);
#if defined(__AVX512DQ__)
  constexpr int kToFraction = _MM_FROUND_TO_NEG_INF;  // x - floor(x), and 0 of infinity
  const auto f = std::bit_cast<F32x16>(_mm512_maskz_reduce_ps(kAll, std::bit_cast<__m512>(x), kToFraction));
#else
  constexpr float kToInteger = 12582912.0f;
  const F32x16 bounded = min(splat<F32x16>(128.0), max(splat<F32x16>(-127.0), x));
  const F32x16 nearest = (bounded + kToInteger) - kToInteger;
  const F32x16 whole = nearest > bounded ? nearest - 1.0f : nearest;
  const F32x16 f = bounded - whole;
#endif
  F32x16 p;
  if constexpr (kDegree == 4) {
    p = 1.0f + f * (0.693044841f + f * (0.241280213f + f * (0.0522424728f + f * 0.0134266857f)));
  } else {
    p = 1.0f +
        f * (0.693151295f + f * (0.240164444f + f * (0.0557999127f + f * (0.00901702978f + f * 0.00186713017f))));
  }
#if defined(__AVX512DQ__)
  return times_power_of_two(p, x, I32x16{});  // of its floor
#else
  // A NaN has no whole part; p is NaN then.
  const I32x16 exponent = __builtin_convertvector(whole == whole ? whole : F32x16{}, I32x16);
  return p * std::bit_cast<F32x16>((exponent + 127) << 23);
#endif
}
inline constexpr float kLog2E = 1.44269504f;

// exp for results that are rounded to T: for bf16 within 2^-18 where |x| < 40, for others exp().
template <class T, class V>
LOOM_INLINE V exp_to(V x) {
  if constexpr (std::is_same_v<T, bf16>) {
    return exp2<4>(x * kLog2E);
  } else {
    return exp(x);
  }
}

// 1 / x for x >= 1, to 14 bits and, by one Newton step, within a unit in the last place.
LOOM_INLINE double reciprocal(double x) { return 1 / x; }
LOOM_INLINE F32x16 coarse_reciprocal(F32x16 x) {
#if defined(__AVX512F__)
  return std::bit_cast<F32x16>(_mm512_maskz_rcp14_ps(kAll, std::bit_cast<__m512>(x)));
#else
  return 1.0f / x;
#endif
}
LOOM_INLINE F32x16 reciprocal(F32x16 x) {
#if defined(__AVX512F__)
  const auto v = std::bit_cast<__m512>(x);
  const F32x16 estimate = coarse_reciprocal(x);
  const __mmask16 not_infinite =
      _mm512_cmp_ps_mask(v, _mm512_set1_ps(std::numeric_limits<float>::infinity()), _CMP_NEQ_UQ);
  const F32x16 error = 1.0f - x * estimate;
  const auto e = std::bit_cast<__m512>(estimate);
  return std::bit_cast<F32x16>(_mm512_maskz_fmadd_ps(not_infinite, e, std::bit_cast<__m512>(error), e));
#else
  return 1.0f / x;
#endif
}

template <class V>
LOOM_INLINE V sigmoid(V x) {
  return reciprocal(1.0f + exp(-x));
}
// sigmoid for results that are rounded to T: for bf16 within 2^-13.9; for slopes, where it is subtracted from its like,
// within 2^-18.
template <class T, class V>
LOOM_INLINE V sigmoid_to(V x) {
  if constexpr (std::is_same_v<T, bf16>) {
    return coarse_reciprocal(1.0f + exp2<4>(x * -kLog2E));
  } else {
    return sigmoid(x);
  }
}
template <class T, class V>
LOOM_INLINE V sigmoid_of_slope(V x) {
  return reciprocal(1.0f + exp_to<T>(-x));
}

// tanh(x) = t / (t + 2) with t = e^(2x) - 1 = 2^n (e^r - 1) + (2^n - 1), which keeps its precision near 0.
LOOM_INLINE double tanh(double x) { return std::tanh(x); }
LOOM_INLINE F32x16 tanh(F32x16 x) {
  const F32x16 one = splat<F32x16>(1.0);
  const F32x16 end = splat<F32x16>(10.0);  // tanh rounds to 1 there
  F32x16 y = x > end ? end : x;
  y = y < -end ? -end : y;
  const ReducedExp e = reduce_exp(2.0f * y);
  const F32x16 power = times_power_of_two(one, e.n, e.whole);
  const F32x16 t = power * e.expm1_of_r + (power - 1.0f);
  const F32x16 result = t / (t + 2.0f);
  return x == 0.0f ? x : result;
}

// Chebyshev interpolants: of erf(x) / x - 1 in x^2 on [0, 1], and of -log(1 - erf(x)) in x - 2.5 on [1, 4].
LOOM_INLINE double erf(double x) { return std::erf(x); }
LOOM_INLINE F32x16 erf(F32x16 x) {
  const F32x16 size = x < 0.0f ? -x : x;
  const F32x16 s = x * x;
  const F32x16 near =
      0.128379167f +
      s * (-0.37612626f + s * (0.112835944f + s * (-0.0268542115f + s * (0.00518908724f + s * (-0.00080168643f +
                                                                                               s * 7.87587487e-05f)))));
  const F32x16 end = splat<F32x16>(4.0);  // erf rounds to 1 there
  const F32x16 u = (size > end ? end : size) - 2.5f;
  const F32x16 q =
      7.80681515f +
      u * (5.35268068f +
           u * (0.943893731f +
                u * (0.0108585414f + u * (-0.00216530357f +
                                          u * (0.000420122524f +
                                               u * (-7.7291377e-05f + u * (1.33150143e-05f - u * 1.6371514e-06f)))))));
  const F32x16 far = 1.0f - exp(-q);
  return size < 1.0f ? x + x * near : (x < 0.0f ? -far : far);
}

// ---- Reductions over a row ----------------------------------------------------------------------------------------

// Zeroes the lanes behind a partial pack.
template <class V>
LOOM_INLINE V keep(V value, Full) {
  return value;
}
template <class V>
LOOM_INLINE V keep(V value, Part part) {
  if constexpr (!std::is_same_v<V, double>) {
    for (std::int64_t lane = part.count; lane < lanes<V>; ++lane) value[lane] = 0;
  }
  return value;
}

// The lanes' sum, by halves: lane i + lane i + 8, then + 4, + 2, + 1.
LOOM_INLINE double sum_lanes(double value) { return value; }
LOOM_INLINE float sum_lanes(F32x16 value) {
  const auto [low, high] = std::bit_cast<std::array<F32x8, 2>>(value);
  const auto [first, second] = std::bit_cast<std::array<F32x4, 2>>(low + high);
  const F32x4 sum = first + second;
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}
LOOM_INLINE double max_lanes(double value) { return value; }
LOOM_INLINE float max_lanes(F32x16 value) {
  const auto [low, high] = std::bit_cast<std::array<F32x8, 2>>(value);
  const F32x8 eight = low > high ? low : high;
  const auto [first, second] = std::bit_cast<std::array<F32x4, 2>>(eight);
  const F32x4 four = first > second ? first : second;
  const float even = four[0] > four[2] ? four[0] : four[2], odd = four[1] > four[3] ? four[1] : four[3];
  return even > odd ? even : odd;
}

// Sum over i < elems of term(i, Full or Part), in four interleaved accumulators added pairwise. Terms of a Part must be
// zero in the missing lanes (see keep()).
template <class V, class Term>
LOOM_INLINE auto sum_packs(std::int64_t elems, Term&& term) {
  V total[4] = {};
  std::int64_t i = 0;
  for (; i + 4 * lanes<V> <= elems; i += 4 * lanes<V>) {
    for (int k = 0; k < 4; ++k) total[k] += term(i + k * lanes<V>, Full{});
  }
  for (; i + lanes<V> <= elems; i += lanes<V>) total[0] += term(i, Full{});
  if (i < elems) total[1] += term(i, Part{elems - i});
  return sum_lanes((total[0] + total[1]) + (total[2] + total[3]));
}

// Sum over i < elems of value(i, Full or Part)^2 in double, where squares of fp32 are exact; in eight interleaved
// accumulators. Values of a Part must be zero in the missing lanes.
template <class V, class Value>
LOOM_INLINE double sum_of_squares(std::int64_t elems, Value&& value) {
  if constexpr (std::is_same_v<V, double>) {
    double sum = 0;
    for (std::int64_t i = 0; i < elems; ++i) sum += value(i, Full{}) * value(i, Full{});
    return sum;
  } else {
    constexpr int kPacks = 4;
    F64x8 sums[2 * kPacks] = {};
    const auto add = [&](int k, V pack) {
      const auto half = std::bit_cast<std::array<F32x8, 2>>(pack);
      const F64x8 a = __builtin_convertvector(half[0], F64x8);
      const F64x8 b = __builtin_convertvector(half[1], F64x8);
      sums[2 * k] += a * a;
      sums[2 * k + 1] += b * b;
    };
    std::int64_t i = 0;
    for (; i + kPacks * lanes<V> <= elems; i += kPacks * lanes<V>) {
      for (int k = 0; k < kPacks; ++k) add(k, value(i + k * lanes<V>, Full{}));
    }
    for (; i + lanes<V> <= elems; i += lanes<V>) add(0, value(i, Full{}));
    if (i < elems) add(1, value(i, Part{elems - i}));
    for (int half = kPacks; half >= 1; half /= 2) {
      for (int k = 0; k < half; ++k) sums[k] += sums[k + half];
    }
    const F64x8 sum = sums[0];
    return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
  }
}

}  // namespace loom::kernels::simd
