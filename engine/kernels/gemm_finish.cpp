#include "engine/kernels/gemm_finish.h"

#include "engine/core/dtype.h"

namespace loom::kernels {
namespace {

template <class T>
void write_row(const GemmTile& t, std::int64_t row, const float* sums) {
  T* const c = static_cast<T*>(t.c) + row * t.c_row;
  const float* const before = t.sums == nullptr ? nullptr : t.sums + row * t.sums_row;
  for (std::int64_t i = 0; i < t.columns; ++i) {
    float value = sums[i];
    if (before != nullptr) value = before[i] + value;
    if (t.bias != nullptr) value += t.bias[i];
    if (t.adds_c) value = static_cast<float>(c[i]) + value;
    c[i] = T(value);
  }
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
