// The codecs of parquet's pages: UNCOMPRESSED, SNAPPY, GZIP, ZSTD, LZ4_RAW. Private to engine/formats.
//
// Bounds   1 GiB per page, and the largest size that the codec can produce from the bytes; both are checked before
//          anything is allocated.
// Errors   BadBytes: not the codec's bytes, or not of the size that the page gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace loom::io {

// Bytes that are kept for the next page.
class PageBuffer {
 public:
  // `size` bytes of any content; the former ones are gone.
  char* resize(std::size_t size) {
    if (size > capacity_) {
      bytes_ = std::make_unique_for_overwrite<char[]>(size);
      capacity_ = size;
    }
    size_ = size;
    return bytes_.get();
  }
  std::string_view bytes() const { return {bytes_.get(), size_}; }

 private:
  std::unique_ptr<char[]> bytes_;
  std::size_t capacity_ = 0;
  std::size_t size_ = 0;
};

bool is_known_codec(std::int32_t codec);

// The page's bytes: `compressed` itself without a codec, else the bytes of `buffer`.
std::string_view decompressed(std::int32_t codec, std::string_view compressed, std::size_t size, PageBuffer& buffer);

}  // namespace loom::io
