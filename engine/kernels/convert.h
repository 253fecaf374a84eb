// Runs of 16-bit floats to fp32 and back, one rounding (to nearest, ties to even). Private to engine/kernels.
#pragma once

#include <cstdint>

#include "engine/core/dtype.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace loom::kernels {

inline void widen(const bf16* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
}
inline void narrow(const float* from, std::int64_t count, bf16* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = bf16(from[i]);
}

inline void widen(const f16* from, std::int64_t count, float* to) {
  std::int64_t i = 0;
#if defined(__F16C__) && defined(__AVX__)
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
#endif
  for (; i < count; ++i) to[i] = static_cast<float>(from[i]);
}
inline void narrow(const float* from, std::int64_t count, f16* to) {
  std::int64_t i = 0;
#if defined(__F16C__) && defined(__AVX__)
  for (; i + 8 <= count; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
#endif
  for (; i < count; ++i) to[i] = f16(from[i]);
}

}  // namespace loom::kernels
