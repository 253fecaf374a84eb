// How this processor multiplies bf16 fastest. Private to engine/kernels.
//
// Pairs     vdpbf16ps: two products a lane and instruction. AMD issues it as often as an FMA of fp32: twice the FLOP/s
//           (measured on Zen 5). Intel's Cooper Lake, made for it, is taken to do so too; none was at hand.
// Widened   each bf16 becomes an fp32, which is exact, and an FMA multiplies it. Intel issues vdpbf16ps every second
//           cycle from Sapphire Rapids on, as its AMX is meant for bf16, and two FMAs of fp32 every cycle: a half
//           (Emerald Rapids, 2 cores: 178 and 344 GFLOP/s).
// Choice    by the processor's name, never by time: the bits of a result depend on it.
#pragma once

#include <cstdint>

namespace loom::kernels {

enum class Bf16Products : std::uint8_t { kPairs, kWidened };

// kPairs also where the processor has no such instruction.
Bf16Products fastest_bf16_products();

}  // namespace loom::kernels
