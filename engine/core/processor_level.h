// What a processor of x86-64 has beyond AVX2, FMA and F16C: which of the kernels' compilations a program built with
// LOOM_NATIVE=OFF runs (cmake/LoomProcessors.cmake), and which matrix products every program may choose from.
#pragma once

namespace loom {

enum class ProcessorLevel : int {
  kV3,          // x86-64-v3: no more than that, and on other processors
  kAvx512,      // x86-64-v4: AVX-512 F, BW, CD, DQ and VL
  kAvx512Bf16,  // and AVX512-BF16
};

// The level of this process: that of the processor, or less if SHARDLOOM_PROCESSOR, read when the program starts, is
// "x86-64-v3" or "x86-64-v4". Any thread.
ProcessorLevel processor_level();

// ConfigError if SHARDLOOM_PROCESSOR has another value.
void check_processor_variable();

}  // namespace loom
