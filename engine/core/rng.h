// Counter-based random numbers: Philox 4x32-10. A number is a pure function of (key, counter), so what element i of a
// tensor gets does not depend on who draws it, in which order, or on how many ranks there are.
//
// Source   Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace loom {

using Philox4 = std::array<std::uint32_t, 4>;

// The 128 random bits at `counter` under `key`.
Philox4 philox(std::uint64_t key, std::uint64_t counter_low, std::uint64_t counter_high = 0);

// A 64-bit key from a seed and a name (FNV-1a, then mixed): one stream per parameter.
std::uint64_t stream_key(std::uint64_t seed, std::string_view stream);

// Element `index` of a stream: uniform in [0, 1), resolution 2^-32; standard normal (Box-Muller in double, the same
// bits on every processor).
double uniform_at(std::uint64_t key, std::uint64_t index);
double normal_at(std::uint64_t key, std::uint64_t index);
// to[i] = 2^32 uniform_at(key, first + i): together, several times as fast as one after another.
void words_at(std::uint64_t key, std::uint64_t first, std::span<std::uint32_t> to);
// to[i] = normal_at(key, first + i): together; one alone costs as much as sixteen.
void normals_at(std::uint64_t key, std::uint64_t first, std::span<double> to);

// A bijection of [0, n): position -> shuffled position. Feistel network with cycle walking; no table.
// Precondition: position < n.
std::uint64_t permute(std::uint64_t key, std::uint64_t position, std::uint64_t n);

}  // namespace loom
