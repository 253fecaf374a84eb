// A 64-bit digest of bytes (FNV-1a): to compare bytes that should be equal, not against an adversary.
#pragma once

#include <cstddef>
#include <cstdint>

namespace loom {

inline constexpr std::uint64_t kDigestSeed = 0xcbf29ce484222325u;

// Continues the digest `before` with `data`.
inline std::uint64_t digest(const void* data, std::size_t bytes, std::uint64_t before = kDigestSeed) {
  const auto* byte = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < bytes; ++i) before = (before ^ byte[i]) * 0x100000001b3u;
  return before;
}

}  // namespace loom
