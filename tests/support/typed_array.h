// Arrays of a dtype chosen at run time, and a rank with a given number of compute threads, for kernel tests.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/core/rank_context.h"
#include "engine/core/rng.h"

namespace loom::test {

// f(T()), where T holds the values of `dtype`.
template <class F>
auto with_type(DType dtype, F f) {
  switch (dtype) {
    case DType::kBF16:
      return f(bf16{});
    case DType::kF16:
      return f(f16{});
    case DType::kF64:
      return f(double{});
    default:
      return f(float{});
  }
}

class TypedArray {
 public:
  static TypedArray filled(DType dtype, std::int64_t count, double value) {
    TypedArray array(dtype, count);
    array.set_each([&](std::int64_t) { return value; });
    return array;
  }
  // Uniform in [-1, 1), rounded to `dtype`.
  static TypedArray random(DType dtype, std::int64_t count, std::uint64_t key) {
    TypedArray array(dtype, count);
    array.set_each([&](std::int64_t i) { return 2 * uniform_at(key, static_cast<std::uint64_t>(i)) - 1; });
    return array;
  }

  double get(std::int64_t i) const {
    return with_type(dtype_, [&]<class T>(T) { return load<T>(i); });
  }
  void set(std::int64_t i, double value) {
    with_type(dtype_, [&]<class T>(T) { store<T>(i, value); });
  }

  // All of them, for references whose loops read each many times.
  std::vector<double> doubles() const {
    std::vector<double> values(static_cast<std::size_t>(count()));
    with_type(dtype_, [&]<class T>(T) {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = load<T>(static_cast<std::int64_t>(i));
    });
    return values;
  }

  std::int64_t count() const { return static_cast<std::int64_t>(bytes_.size() / element_bytes(dtype_)); }
  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  void* at(std::int64_t i) { return bytes_.data() + offset(i); }
  const void* at(std::int64_t i) const { return bytes_.data() + offset(i); }
  bool operator==(const TypedArray&) const = default;  // bit by bit

 private:
  TypedArray(DType dtype, std::int64_t count) : dtype_(dtype), bytes_(count * element_bytes(dtype)) {}
  std::size_t offset(std::int64_t i) const { return i * element_bytes(dtype_); }
  template <class F>
  void set_each(F value_of) {
    with_type(dtype_, [&]<class T>(T) {
      for (std::int64_t i = 0, n = count(); i < n; ++i) store<T>(i, value_of(i));
    });
  }
  template <class T>
  double load(std::int64_t i) const {
    T value;
    std::memcpy(&value, bytes_.data() + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
    if constexpr (std::is_same_v<T, double>) {
      return value;
    } else {
      return static_cast<float>(value);
    }
  }
  template <class T>
  void store(std::int64_t i, double value) {
    T rounded;
    if constexpr (std::is_same_v<T, double>) {
      rounded = value;
    } else {
      rounded = T(static_cast<float>(value));
    }
    std::memcpy(bytes_.data() + static_cast<std::size_t>(i) * sizeof(T), &rounded, sizeof(T));
  }

  DType dtype_;
  std::vector<unsigned char> bytes_;
};

// The thread counts this build's pool accepts, out of 1, 2 and 3.
inline std::vector<int> thread_counts() {
  std::vector<int> counts;
  for (const int threads : {1, 2, 3}) {
    try {
      ComputePool().resize(threads);
      counts.push_back(threads);
    } catch (const ConfigError&) {  // serial loops
    }
  }
  return counts;
}

// A current rank whose pool has `threads` threads.
class WithThreads {
 public:
  explicit WithThreads(int threads) : context_(0, 1), scope_(context_) { context_.slot<ComputePool>().resize(threads); }

 private:
  RankContext context_;
  RankScope scope_;
};

}  // namespace loom::test
