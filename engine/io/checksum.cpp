#include "engine/io/checksum.h"

#include <algorithm>
#include <isa-l/crc.h>

namespace loom::io {
namespace {

constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;  // the library counts the bytes of CRC-32C in an int

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

}  // namespace loom::io
