// torch_permutation: torch.randperm on the CPU with a generator of a seed, number for number.
//
// Draws    32 bits of a Mersenne twister each; entry i is exchanged with entry i + draw mod (count - i).
// Limits   count below kMostPermuted: torch draws 64 bits from there on, which is not built.
// Threads  a pure function.
// Errors   InvariantError for another count.
// Source   aten/src/ATen/native/TensorFactories.cpp, randperm_cpu; compared with torch 2.15.
#pragma once

#include <cstdint>
#include <vector>

namespace loom::multimodal {

inline constexpr std::int64_t kMostPermuted = 4294967295 / 20;

// 0 to count - 1. Of the seed the low 32 bits count, as in torch.
std::vector<std::int64_t> torch_permutation(std::int64_t count, std::uint64_t seed);

}  // namespace loom::multimodal
