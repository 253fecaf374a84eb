// The bf16 copy of fp32 weights inside their own memory: n values of 4 bytes become n residuals of 2 bytes and, behind
// them, n bf16 values; both together are the fp32 values, and the bf16 ones are ready to be sent.
//
// Rounding  as a cast rounds, half to even: a value exactly between two bf16 ones leaves a mark in `ties`, one bit a
//           value, as the 32 bits of the halves cannot hold it. Without `ties` halves round away from zero, and nothing
//           but the 32 bits is needed.
// Exact     join after split gives every bit pattern back, NaN and infinities too.
// Scratch   2 n bytes, contents undefined.
// Threads   the calling thread: blocks move over one another.
// Source    MindSpeed, optimizer/optimizer.py (--reuse-fp32-param), which hides the mark in the sign of exp_avg_sq.
#pragma once

#include <cstdint>

namespace loom::kernels {

// Bytes of the marks of `n` values.
constexpr std::int64_t tie_bytes(std::int64_t n) { return (n + 7) / 8; }

// [n] fp32 -> [n] residuals, [n] bf16. `ties`: tie_bytes(n), written; or null.
void split_fp32(void* values, std::int64_t n, std::uint8_t* ties, void* scratch);
// Back, with the same `ties`.
void join_fp32(void* values, std::int64_t n, const std::uint8_t* ties, void* scratch);

}  // namespace loom::kernels
