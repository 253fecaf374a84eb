#include "engine/formats/parquet/parquet_codec.h"

#include <lz4.h>
#include <snappy.h>
#include <zlib.h>
#include <zstd.h>

#include "engine/formats/parquet/parquet_bytes.h"
#include "engine/formats/parquet/parquet_metadata.h"

namespace loom::io {
namespace {

constexpr std::size_t kMostPageBytes = std::size_t{1} << 30;
enum Codec : std::int32_t { kUncompressed = 0, kSnappy = 1, kGzip = 2, kZstd = 6, kLz4Raw = 7 };

// Bytes that one compressed byte can become: a copy of 64 bytes in 3; 258 bytes in 2 bits; a block of 128 KiB in 4
// bytes; 255 bytes in one.
std::size_t most_expansion(std::int32_t codec) {
  switch (codec) {
    case kSnappy:
      return 32;
    case kGzip:
      return 1040;
    case kZstd:
      return 32768;
    case kLz4Raw:
      return 256;
    default:
      return 1;
  }
}

bool unsnap(std::string_view from, char* to, std::size_t size) {
  std::size_t claimed = 0;
  return snappy::GetUncompressedLength(from.data(), from.size(), &claimed) && claimed == size &&
         snappy::RawUncompress(from.data(), from.size(), to);
}

// One member behind another, as gzip files may have.
bool inflate_all(std::string_view from, char* to, std::size_t size) {
  z_stream stream{};
  constexpr int kGzipOrZlib = 15 + 32;
  if (inflateInit2(&stream, kGzipOrZlib) != Z_OK) throw std::bad_alloc();
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(from.data()));
  stream.avail_in = static_cast<uInt>(from.size());
  stream.next_out = reinterpret_cast<Bytef*>(to);
  stream.avail_out = static_cast<uInt>(size);
  int status = inflate(&stream, Z_FINISH);
  while (status == Z_STREAM_END && stream.avail_in > 0 && inflateReset(&stream) == Z_OK) {
    status = inflate(&stream, Z_FINISH);
  }
  const bool whole = status == Z_STREAM_END && stream.avail_in == 0 && stream.avail_out == 0;
  inflateEnd(&stream);
  return whole;
}

bool decompress(std::int32_t codec, std::string_view from, char* to, std::size_t size) {
  switch (codec) {
    case kSnappy:
      return unsnap(from, to, size);
    case kGzip:
      return inflate_all(from, to, size);
    case kZstd:
      return ZSTD_decompress(to, size, from.data(), from.size()) == size;
    case kLz4Raw:
      return LZ4_decompress_safe(from.data(), to, static_cast<int>(from.size()), static_cast<int>(size)) ==
             static_cast<int>(size);
    default:
      return false;
  }
}

}  // namespace

bool is_known_codec(std::int32_t codec) {
  return codec == kUncompressed || codec == kSnappy || codec == kGzip || codec == kZstd || codec == kLz4Raw;
}

std::string_view decompressed(std::int32_t codec, std::string_view compressed, std::size_t size, PageBuffer& buffer) {
  if (codec == kUncompressed) {
    if (compressed.size() != size) bad_bytes("{} bytes without compression, {} claimed", compressed.size(), size);
    return compressed;
  }
  if (size > kMostPageBytes) bad_bytes("a page of {} bytes; at most {} are read", size, kMostPageBytes);
  if (size / most_expansion(codec) > compressed.size()) {
    bad_bytes("{} bytes of {} cannot become the {} that are claimed", compressed.size(), name_of_codec(codec), size);
  }
  // A codec may want an address even where there is nothing to write.
  char* const to = buffer.resize(size + 1);
  if (!decompress(codec, compressed, to, size)) {
    bad_bytes("{} bytes are not {} that becomes {} bytes", compressed.size(), name_of_codec(codec), size);
  }
  return buffer.bytes().substr(0, size);
}

}  // namespace loom::io
