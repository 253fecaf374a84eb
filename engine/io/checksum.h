// Checksums of bytes, at the speed of memory.
//
// crc32    of zip files and gzip: polynomial 0x04C11DB7 reflected, all ones before and inverted after.
// crc32c   of TensorBoard's event files and of checkpoints: polynomial 0x1EDC6F41, the same way.
// Pieces   `before` is the checksum of the preceding bytes; 0 if there are none.
// Threads  safe from any number of threads.
// Source   Intel ISA-L, crc.h; zlib, crc32_combine(), for sums of two parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace loom::io {

std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before = 0);
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);
// The checksum of two adjacent parts, each summed from 0; `second_bytes` is the length of the second.
std::uint32_t crc32c_of_both(std::uint32_t first, std::uint32_t second, std::uint64_t second_bytes);

}  // namespace loom::io
