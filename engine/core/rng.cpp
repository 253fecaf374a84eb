#include "engine/core/rng.h"

#include <algorithm>
#include <bit>

#include "engine/core/digest.h"
#include "engine/core/philox_rounds.h"

namespace loom {
namespace {

constexpr std::size_t kWords = 4 * kPhiloxBlocks;

// Elements 4 block ... 4 block + kWords - 1 of a stream.
void draw_words(std::uint64_t key, std::uint64_t block, std::uint32_t* to) {
  const std::array<PhiloxWords, 4> words = philox_blocks(key, block);
  for (int i = 0; i < kPhiloxBlocks; ++i) {
    for (std::size_t word = 0; word < words.size(); ++word) *to++ = static_cast<std::uint32_t>(words[word][i]);
  }
}

}  // namespace

Philox4 philox(std::uint64_t key, std::uint64_t counter_low, std::uint64_t counter_high) {
  constexpr std::uint64_t kLow = 0xffffffffu;
  const std::array<std::uint64_t, 4> words = philox_rounds<std::uint64_t>(
      key, {counter_low & kLow, counter_low >> 32, counter_high & kLow, counter_high >> 32});
  Philox4 block;
  for (std::size_t i = 0; i < block.size(); ++i) block[i] = static_cast<std::uint32_t>(words[i]);
  return block;
}

std::uint64_t stream_key(std::uint64_t seed, std::string_view stream) {
  const Philox4 mixed = philox(seed, digest(stream.data(), stream.size()));
  return static_cast<std::uint64_t>(mixed[1]) << 32 | mixed[0];
}

double uniform_at(std::uint64_t key, std::uint64_t index) { return philox(key, index / 4)[index % 4] * 0x1p-32; }

void words_at(std::uint64_t key, std::uint64_t first, std::span<std::uint32_t> to) {
  std::size_t done = 0;
  while (done < to.size()) {
    const std::uint64_t index = first + done;
    if (index % 4 == 0 && to.size() - done >= kWords) {
      draw_words(key, index / 4, to.data() + done);
      done += kWords;
      continue;
    }
    const Philox4 block = philox(key, index / 4);
    const std::size_t some = std::min<std::size_t>(4 - index % 4, to.size() - done);
    std::copy_n(block.begin() + index % 4, some, to.data() + done);
    done += some;
  }
}

std::uint64_t permute(std::uint64_t key, std::uint64_t position, std::uint64_t n) {
  const int half_bits = (std::bit_width(n - 1) + 1) / 2;
  if (half_bits == 0) return 0;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t value = position;
  do {
    std::uint64_t left = value >> half_bits;
    std::uint64_t right = value & mask;
    for (std::uint64_t round = 0; round < 4; ++round) {
      const std::uint64_t mixed = philox(key, right, round)[0];
      left ^= mixed & mask;
      std::swap(left, right);
    }
    value = left << half_bits | right;
  } while (value >= n);
  return value;
}

}  // namespace loom
