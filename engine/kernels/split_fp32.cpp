#include "engine/kernels/split_fp32.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace loom::kernels {
namespace {

constexpr std::int64_t kBlock = 2048;  // values; a multiple of 8
constexpr std::uint32_t kHalf = 0x8000;

std::byte* at(void* base, std::int64_t bytes) { return static_cast<std::byte*>(base) + bytes; }
std::size_t sized(std::int64_t bytes) { return static_cast<std::size_t>(bytes); }

// Exactly half, above an even bf16 value: rounds down.
std::uint32_t is_tie(std::uint32_t bits) { return (bits & 0x1ffff) == kHalf ? 1 : 0; }

struct Block {
  std::array<std::uint32_t, kBlock> bits;
  std::array<std::uint16_t, kBlock> residuals;
  std::array<std::uint16_t, kBlock> upper;
  std::array<std::uint32_t, kBlock> ties{};
};

void pack(const Block& block, std::int64_t count, std::uint8_t* ties) {
  for (std::int64_t begin = 0; begin < count; begin += 8) {
    std::uint32_t byte = 0;
    for (std::int64_t i = begin; i < std::min(begin + 8, count); ++i) byte |= block.ties[sized(i)] << (i - begin);
    ties[begin / 8] = static_cast<std::uint8_t>(byte);
  }
}

void unpack(const std::uint8_t* ties, std::int64_t count, Block& block) {
  for (std::int64_t i = 0; i < count; ++i) block.ties[sized(i)] = (ties[i / 8] >> (i % 8)) & 1U;
}

}  // namespace

// Residuals go forward to where values have been read; the bf16 values would lie on values that have not.
void split_fp32(void* values, std::int64_t n, std::uint8_t* ties, void* scratch) {
  Block block;
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, n - begin);
    std::memcpy(block.bits.data(), at(values, 4 * begin), sized(4 * count));
    for (std::size_t i = 0; i < sized(count); ++i) {
      if (ties != nullptr) block.ties[i] = is_tie(block.bits[i]);
      const std::uint32_t moved = block.bits[i] + kHalf - block.ties[i];
      block.residuals[i] = static_cast<std::uint16_t>(moved);
      block.upper[i] = static_cast<std::uint16_t>(moved >> 16);
    }
    if (ties != nullptr) pack(block, count, ties + begin / 8);
    std::memcpy(at(values, 2 * begin), block.residuals.data(), sized(2 * count));
    std::memcpy(at(scratch, 2 * begin), block.upper.data(), sized(2 * count));
  }
  if (n > 0) std::memcpy(at(values, 2 * n), scratch, sized(2 * n));
}

// From the last block, so that a value lies on residuals that have been read.
void join_fp32(void* values, std::int64_t n, const std::uint8_t* ties, void* scratch) {
  if (n == 0) return;
  std::memcpy(scratch, at(values, 2 * n), sized(2 * n));
  Block block;
  for (std::int64_t begin = (n - 1) / kBlock * kBlock; begin >= 0; begin -= kBlock) {
    const std::int64_t count = std::min(kBlock, n - begin);
    std::memcpy(block.residuals.data(), at(values, 2 * begin), sized(2 * count));
    std::memcpy(block.upper.data(), at(scratch, 2 * begin), sized(2 * count));
    if (ties != nullptr) unpack(ties + begin / 8, count, block);
    for (std::size_t i = 0; i < sized(count); ++i) {
      const std::uint32_t moved = std::uint32_t{block.upper[i]} << 16 | block.residuals[i];
      block.bits[i] = moved - kHalf + block.ties[i];
    }
    std::memcpy(at(values, 4 * begin), block.bits.data(), sized(4 * count));
  }
}

}  // namespace loom::kernels
