#include "engine/comm/local/copy.h"

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace loom::comm {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kStreamFrom = std::size_t{4} << 20;  // past a core's own caches

#if defined(__AVX512F__)
inline void stream_line(std::byte* to, const std::byte* from) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
}
inline void stream_end() { _mm_sfence(); }
#elif defined(__SSE2__)
inline void stream_line(std::byte* to, const std::byte* from) {
  for (std::size_t i = 0; i < kLine; i += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
}
inline void stream_end() { _mm_sfence(); }
#else
inline void stream_line(std::byte* to, const std::byte* from) { std::memcpy(to, from, kLine); }
inline void stream_end() {}
#endif

void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(to) % kLine;
  const std::size_t head = misaligned == 0 ? 0 : kLine - misaligned;
  std::memcpy(to, from, head);
  std::size_t done = head;
  for (; done + kLine <= bytes; done += kLine) stream_line(to + done, from + done);
  stream_end();
  std::memcpy(to + done, from + done, bytes - done);
}

}  // namespace

void copy_between_ranks(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0 || to == from) return;
  if (bytes < kStreamFrom) {
    std::memcpy(to, from, bytes);
  } else {
    stream_copy(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes);
  }
}

}  // namespace loom::comm
