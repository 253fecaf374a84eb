#include "engine/io/checksum.h"

#include <algorithm>
#include <isa-l/crc.h>

namespace loom::io {
namespace {

constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;  // the library counts the bytes of CRC-32C in an int

// The product of two polynomials modulo the polynomial of CRC-32C; the bit of x^0 is the highest.
std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
  constexpr std::uint32_t kReflected = 0x82F63B78;
  std::uint32_t product = 0;
  for (std::uint32_t bit = 1U << 31; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b & 1) != 0 ? (b >> 1) ^ kReflected : b >> 1;
  }
  return product;
}

}  // namespace

std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before) {
  return ::crc32_gzip_refl(before, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
  std::uint32_t crc = ~before;
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), kMostAtOnce));
    // The library does not write into the buffer; its parameter is not const.
    auto* data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(piece.data()));
    crc = ::crc32_iscsi(data, static_cast<int>(piece.size()), crc);
    bytes = bytes.subspan(piece.size());
  }
  return ~crc;
}

// The first sum moves up by the bits of the second part: times x^(8 second_bytes), by squares.
std::uint32_t crc32c_of_both(std::uint32_t first, std::uint32_t second, std::uint64_t second_bytes) {
  std::uint32_t power = 1U << 23;  // x^8
  std::uint32_t moved = first;
  for (std::uint64_t bytes = second_bytes; bytes > 0; bytes >>= 1) {
    if ((bytes & 1) != 0) moved = multiply(power, moved);
    power = multiply(power, power);
  }
  return moved ^ second;
}

}  // namespace loom::io
