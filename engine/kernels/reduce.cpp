#include "engine/kernels/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "engine/kernels/dispatch.h"
#include "engine/kernels/simd.h"

namespace loom::kernels {
namespace {

// The block of sums that stays in the L1 cache while the inputs stream by.
constexpr std::int64_t kBlockElems = 1024;

template <class T, class Out, class Put>
void sum_floats(std::span<const void* const> inputs, simd::Scalar<T> factor, std::int64_t elems, Out* out, Put put) {
  using V = simd::Pack<T>;
  const auto at = [&](std::size_t input, std::int64_t i) { return static_cast<const T*>(inputs[input]) + i; };
  alignas(64) simd::Scalar<T> sums[kBlockElems];
  for (std::int64_t begin = 0; begin < elems; begin += kBlockElems) {
    const std::int64_t count = std::min(kBlockElems, elems - begin);
    const T* first = at(0, begin);
    simd::for_packs<V>(count, [&](std::int64_t i, auto part) {
      simd::prefetch_ahead(first + i);
      simd::store(sums + i, simd::load<V>(first + i, part), part);
    });
    for (std::size_t input = 1; input < inputs.size(); ++input) {
      const T* values = at(input, begin);
      simd::for_packs<V>(count, [&](std::int64_t i, auto part) {
        simd::prefetch_ahead(values + i);
        simd::store(sums + i, simd::load<V>(sums + i, part) + simd::load<V>(values + i, part), part);
      });
    }
    simd::for_packs<V>(
        count, [&](std::int64_t i, auto part) { put(out + begin + i, simd::load<V>(sums + i, part) * factor, part); });
  }
  put.finish();
}

// The sum of two ranks needs no block of sums.
template <class T, class Out, class Put>
void sum_two(const T* first, const T* second, simd::Scalar<T> factor, std::int64_t elems, Out* out, Put put) {
  using V = simd::Pack<T>;
  simd::put_packs<V>(elems, out, put, [=](std::int64_t i, auto part) {
    simd::prefetch_ahead(first + i);
    simd::prefetch_ahead(second + i);
    return (simd::load<V>(first + i, part) + simd::load<V>(second + i, part)) * factor;
  });
  put.finish();
}

template <class T, class Out, class Put>
void sum(std::span<const void* const> inputs, simd::Scalar<T> factor, std::int64_t elems, Out* out, Put put) {
  if (inputs.size() != 2) return sum_floats<T>(inputs, factor, elems, out, put);
  sum_two(static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]), factor, elems, out, put);
}

// Wraps around on overflow, like the hardware. A factor other than 1 rounds the scaled sum to the nearest integer.
template <class T>
void sum_integers(std::span<const void* const> inputs, double factor, std::int64_t elems, T* out) {
  for (std::int64_t i = 0; i < elems; ++i) {
    std::uint64_t sum = 0;
    for (const void* input : inputs) sum += static_cast<std::uint64_t>(static_cast<const T*>(input)[i]);
    if (factor == 1) {
      out[i] = static_cast<T>(sum);
    } else {
      out[i] = static_cast<T>(std::llrint(factor * static_cast<double>(static_cast<std::int64_t>(sum))));
    }
  }
}

// `b` where it is larger or NaN.
LOOM_INLINE double larger(double a, double b) { return b > a || b != b ? b : a; }
LOOM_INLINE simd::F32x16 larger(simd::F32x16 a, simd::F32x16 b) { return ((b > a) | (b != b)) ? b : a; }

template <class T>
void max_of_floats(std::span<const void* const> inputs, std::int64_t elems, T* out) {
  using V = simd::Pack<T>;
  simd::for_packs<V>(elems, [&](std::int64_t i, auto part) {
    const auto at = [&](std::size_t input) { return simd::load<V>(static_cast<const T*>(inputs[input]) + i, part); };
    V top = at(0);
    for (std::size_t input = 1; input < inputs.size(); ++input) top = larger(top, at(input));
    simd::store(out + i, top, part);
  });
}

template <class T>
void max_of_integers(std::span<const void* const> inputs, std::int64_t elems, T* out) {
  for (std::int64_t i = 0; i < elems; ++i) {
    T top = static_cast<const T*>(inputs[0])[i];
    for (const void* input : inputs) top = std::max(top, static_cast<const T*>(input)[i]);
    out[i] = top;
  }
}

}  // namespace

void sum_in_order(DType dtype, std::span<const void* const> inputs, double factor, std::int64_t elems, void* out) {
  require(!inputs.empty(), "sum_in_order needs at least one input, got none");
  require(dtype != DType::kBool, "sum_in_order cannot add bool; cast to int32 first");
  visit_dtype(dtype, [&]<class T>() {
    if constexpr (!std::is_integral_v<T>) {
      const bool in_place = std::find(inputs.begin(), inputs.end(), out) != inputs.end();
      const bool streaming = !in_place && simd::streams(out, 1, elems * static_cast<std::int64_t>(sizeof(T)));
      simd::with_store(streaming, [&](auto put) {
        sum<T>(inputs, static_cast<simd::Scalar<T>>(factor), elems, static_cast<T*>(out), put);
      });
    } else {
      sum_integers(inputs, factor, elems, static_cast<T*>(out));
    }
  });
}

void sum_in_order_as_fp32(DType input_dtype, std::span<const void* const> inputs, double factor, std::int64_t elems,
                          float* out) {
  require(!inputs.empty(), "sum_in_order_as_fp32 needs at least one input, got none");
  require(input_dtype == DType::kF16 || input_dtype == DType::kBF16,
          "sum_in_order_as_fp32 sums fp16 and bf16 inputs, got {}", name(input_dtype));
  const bool streaming = simd::streams(out, 1, elems * static_cast<std::int64_t>(sizeof(float)));
  visit_dtype(input_dtype, [&]<class T>() {
    if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>) {
      simd::with_store(streaming, [&](auto put) { sum<T>(inputs, static_cast<float>(factor), elems, out, put); });
    }
  });
}

void max_of(DType dtype, std::span<const void* const> inputs, std::int64_t elems, void* out) {
  require(!inputs.empty(), "max_of needs at least one input, got none");
  require(dtype != DType::kBool, "max_of takes no bool; cast to int32 first");
  visit_dtype(dtype, [&]<class T>() {
    if constexpr (!std::is_integral_v<T>) {
      max_of_floats(inputs, elems, static_cast<T*>(out));
    } else {
      max_of_integers(inputs, elems, static_cast<T*>(out));
    }
  });
}

}  // namespace loom::kernels
