#include "engine/convert/element_convert.h"

#include <cmath>
#include <cstring>

#include "engine/core/error.h"

#if defined(__F16C__) && defined(__AVX__)
#include <immintrin.h>
#endif

namespace loom::checkpoint {
namespace {

template <class T>
T loaded(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// What the processor can of fp32 to fp16, eight at a time; gives the elements that are done.
std::size_t narrow_eights([[maybe_unused]] std::span<const std::byte> elements,
                          [[maybe_unused]] std::span<std::byte> converted, [[maybe_unused]] std::int64_t& overflowed) {
  std::size_t done = 0;
#if defined(__F16C__) && defined(__AVX__)
  for (; (done + 8) * sizeof(float) <= elements.size(); done += 8) {
    const auto* from = reinterpret_cast<const float*>(elements.data()) + done;
    const __m256 wide = _mm256_loadu_ps(from);
    const __m128i half = _mm256_cvtps_ph(wide, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(converted.data() + done * sizeof(f16)), half);
    const __m256 infinity = _mm256_set1_ps(INFINITY);
    const __m256 no_sign = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    const int is =
        _mm256_movemask_ps(_mm256_cmp_ps(_mm256_and_ps(_mm256_cvtph_ps(half), no_sign), infinity, _CMP_EQ_OQ));
    const int was = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_and_ps(wide, no_sign), infinity, _CMP_EQ_OQ));
    overflowed += __builtin_popcount(static_cast<unsigned>(is & ~was));
  }
#endif
  return done;
}

template <class From, class To>
std::int64_t convert_run(std::span<const std::byte> elements, std::span<std::byte> converted) {
  std::int64_t overflowed = 0;
  const std::size_t count = elements.size() / sizeof(From);
  std::size_t done = 0;
  if constexpr (std::is_same_v<From, float> && std::is_same_v<To, f16>) {
    done = narrow_eights(elements, converted, overflowed);
  }
  for (std::size_t i = done; i < count; ++i) {
    const auto value = loaded<From>(elements.data() + i * sizeof(From));
    const auto narrowed = static_cast<float>(value);
    const auto result = static_cast<To>(narrowed);
    std::memcpy(converted.data() + i * sizeof(To), &result, sizeof result);
    if (!std::isinf(static_cast<float>(result))) continue;
    bool was = std::isinf(narrowed);
    if constexpr (std::is_same_v<From, double>) was = std::isinf(value);
    overflowed += was ? 0 : 1;
  }
  return overflowed;
}

template <class From>
std::int64_t convert_from(std::span<const std::byte> elements, DType to, std::span<std::byte> converted) {
  if (to == DType::kF32) return convert_run<From, float>(elements, converted);
  if (to == DType::kBF16) return convert_run<From, bf16>(elements, converted);
  if (to == DType::kF16) return convert_run<From, f16>(elements, converted);
  return convert_run<From, double>(elements, converted);
}

}  // namespace

std::int64_t convert_elements(DType from, std::span<const std::byte> elements, DType to,
                              std::span<std::byte> converted) {
  require(from == to || (is_floating(from) && is_floating(to)), "{} as {}", name(from), name(to));
  require(elements.size() / element_bytes(from) == converted.size() / element_bytes(to), "{} bytes of {} as {} of {}",
          elements.size(), name(from), converted.size(), name(to));
  if (from == to) {
    std::memcpy(converted.data(), elements.data(), elements.size());
    return 0;
  }
  if (from == DType::kF32) return convert_from<float>(elements, to, converted);
  if (from == DType::kBF16) return convert_from<bf16>(elements, to, converted);
  if (from == DType::kF16) return convert_from<f16>(elements, to, converted);
  return convert_from<double>(elements, to, converted);
}

double element_at(DType dtype, const std::byte* element) {
  switch (dtype) {
    case DType::kF32:
      return loaded<float>(element);
    case DType::kBF16:
      return static_cast<float>(loaded<bf16>(element));
    case DType::kF16:
      return static_cast<float>(loaded<f16>(element));
    case DType::kF64:
      return loaded<double>(element);
    case DType::kI8:
      return loaded<std::int8_t>(element);
    case DType::kI16:
      return loaded<std::int16_t>(element);
    case DType::kI32:
      return loaded<std::int32_t>(element);
    case DType::kI64:
      return static_cast<double>(loaded<std::int64_t>(element));
    case DType::kU8:
    case DType::kBool:
      return loaded<std::uint8_t>(element);
  }
  return 0;
}

}  // namespace loom::checkpoint
