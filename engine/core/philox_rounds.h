// The rounds of Philox 4x32-10, for one block or for several side by side. Private to engine/core.
//
// Word     64 bits that hold a 32-bit word in the lower half, zeros above: std::uint64_t, or a vector of them
// Source   Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>

namespace loom {

template <class Word>
[[gnu::always_inline]] inline std::array<Word, 4> philox_rounds(std::uint64_t key, std::array<Word, 4> c) {
  constexpr std::uint64_t kMul0 = 0xD2511F53u, kMul1 = 0xCD9E8D57u, kLow = 0xffffffffu;
  std::uint64_t k0 = key & kLow, k1 = key >> 32;
  for (int round = 0; round < 10; ++round) {
    const Word p0 = c[0] * kMul0, p1 = c[2] * kMul1;
    c = {(p1 >> 32) ^ c[1] ^ k0, p1 & kLow, (p0 >> 32) ^ c[3] ^ k1, p0 & kLow};
    k0 = (k0 + 0x9E3779B9u) & kLow;
    k1 = (k1 + 0xBB67AE85u) & kLow;
  }
  return c;
}

// kPhiloxBlocks words of 64 bits side by side.
inline constexpr int kPhiloxBlocks = 8;
typedef std::uint64_t PhiloxWords __attribute__((vector_size(8 * kPhiloxBlocks)));

// philox(key, block) ... philox(key, block + kPhiloxBlocks - 1).
[[gnu::always_inline]] inline std::array<PhiloxWords, 4> philox_blocks(std::uint64_t key, std::uint64_t block) {
  PhiloxWords counters;
  for (int i = 0; i < kPhiloxBlocks; ++i) counters[i] = block + static_cast<std::uint64_t>(i);
  const std::uint64_t low = 0xffffffffu;
  return philox_rounds<PhiloxWords>(key, {counters & low, counters >> 32, PhiloxWords{}, PhiloxWords{}});
}

}  // namespace loom
