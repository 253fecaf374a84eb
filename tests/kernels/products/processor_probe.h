// Functions that say what they were compiled for, of tests/kernels/products/processor_level_test.cpp.
#pragma once

namespace loom::test {

// Of vectors: the same function has another body in each compilation.
inline int vector_bytes_here() {
#if defined(__AVX512F__)
  return 64;
#else
  return 32;
#endif
}

// Compiled once a processor level (processor_probe.cpp).
int vector_bytes_of_level();
bool level_has_bf16();
// A static variable that every level has for itself.
int next_of_level();

}  // namespace loom::test
