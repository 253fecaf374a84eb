#include "engine/kernels/gemm_finish.h"

#include "engine/core/dtype.h"

namespace loom::kernels {
namespace {

constexpr std::int64_t kMostColumns = 64;

template <class T>
void write_row(const GemmTile& t, std::int64_t row, const float* sums) {
  T* const c = static_cast<T*>(t.c) + row * t.c_row;
  const std::int64_t columns = t.columns;
  float values[kMostColumns];
  for (std::int64_t i = 0; i < columns; ++i) values[i] = sums[i];
  if (t.sums != nullptr) {
    const float* const before = t.sums + row * t.sums_row;
    for (std::int64_t i = 0; i < columns; ++i) values[i] = before[i] + values[i];
  }
  if (t.bias != nullptr) {
    for (std::int64_t i = 0; i < columns; ++i) values[i] += t.bias[i];
  }
  if (t.rounds_first) {
    for (std::int64_t i = 0; i < columns; ++i) values[i] = static_cast<float>(T(values[i]));
  }
  if (t.adds_c) {
    for (std::int64_t i = 0; i < columns; ++i) values[i] = static_cast<float>(c[i]) + values[i];
  }
  for (std::int64_t i = 0; i < columns; ++i) c[i] = T(values[i]);
}

}  // namespace

void finish_tile(const GemmTile& t, const float* sums, std::int64_t width) {
  for (std::int64_t row = 0; row < t.rows; ++row, sums += width) {
    switch (t.type) {
      case OutputType::kFp32:
        write_row<float>(t, row, sums);
        break;
      case OutputType::kBf16:
        write_row<bf16>(t, row, sums);
        break;
      case OutputType::kFp16:
        write_row<f16>(t, row, sums);
        break;
    }
  }
}

}  // namespace loom::kernels
