// Arrays of a dtype chosen at run time, and a rank with a given number of compute threads, for kernel tests.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/core/rank_context.h"
#include "engine/core/rng.h"

namespace loom::test {

class TypedArray {
 public:
  static TypedArray filled(DType dtype, std::int64_t count, double value) {
    TypedArray array(dtype, count);
    for (std::int64_t i = 0; i < count; ++i) array.set(i, value);
    return array;
  }
  // Uniform in [-1, 1), rounded to `dtype`.
  static TypedArray random(DType dtype, std::int64_t count, std::uint64_t key) {
    TypedArray array(dtype, count);
    for (std::int64_t i = 0; i < count; ++i) array.set(i, 2 * uniform_at(key, static_cast<std::uint64_t>(i)) - 1);
    return array;
  }

  double get(std::int64_t i) const {
    switch (dtype_) {
      case DType::kBF16:
        return static_cast<float>(load<bf16>(i));
      case DType::kF16:
        return static_cast<float>(load<f16>(i));
      case DType::kF64:
        return load<double>(i);
      default:
        return load<float>(i);
    }
  }
  void set(std::int64_t i, double value) {
    switch (dtype_) {
      case DType::kBF16:
        return store(i, bf16(static_cast<float>(value)));
      case DType::kF16:
        return store(i, f16(static_cast<float>(value)));
      case DType::kF64:
        return store(i, value);
      default:
        return store(i, static_cast<float>(value));
    }
  }

  // All of them, for references whose loops read each many times.
  std::vector<double> doubles() const {
    std::vector<double> values(static_cast<std::size_t>(count()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = get(static_cast<std::int64_t>(i));
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
  template <class T>
  T load(std::int64_t i) const {
    T value;
    std::memcpy(&value, bytes_.data() + offset(i), sizeof(T));
    return value;
  }
  template <class T>
  void store(std::int64_t i, T value) {
    std::memcpy(bytes_.data() + offset(i), &value, sizeof(T));
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
