#include "tests/kernels/products/processor_probe.h"

namespace loom::test {

inline int next() {
  static int count = 0;
  return ++count;
}

int vector_bytes_of_level() { return vector_bytes_here(); }

bool level_has_bf16() {
#if defined(__AVX512BF16__)
  return true;
#else
  return false;
#endif
}

int next_of_level() { return next(); }

}  // namespace loom::test
