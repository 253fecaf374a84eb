#include "engine/images/png_decoder.h"

#include <spng.h>

#include <fmt/format.h>
#include <memory>
#include <new>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::images {
namespace {

// A byte of deflate makes at most this many.
constexpr std::int64_t kMostInflation = 1032;
// One chunk beside the pixels, and all that libspng keeps of these (texts, profiles).
constexpr std::size_t kMostKeptBytes = std::size_t{64} << 20;

void check(const PictureBytes& picture, int code) {
  switch (code) {
    case SPNG_OK:
      return;
    case SPNG_EMEM:
      throw std::bad_alloc();
    case SPNG_IO_EOF:
    case SPNG_EOF:
    case SPNG_EIDAT_TOO_SHORT:
      refuse_truncated(picture, fmt::format("the PNG picture has more rows than its {} bytes", picture.bytes.size()));
    case SPNG_ECHUNK_CRC:
      config_error("{}: damaged: the checksum (CRC) of a PNG chunk is wrong; fetch the file again",
                   escaped(picture.name));
    default:
      config_error("{}: not a valid PNG picture ({}); fetch the file again, or write it anew", escaped(picture.name),
                   spng_strerror(code));
  }
}

// The chunks' checksums are verified. That of the compressed stream would be a second one of the same bytes.
class PngReader {
 public:
  explicit PngReader(const PictureBytes& picture)
      : picture_(picture), context_(spng_ctx_new(SPNG_CTX_IGNORE_ADLER32), spng_ctx_free) {
    if (context_ == nullptr) throw std::bad_alloc();
    check(picture_, spng_set_crc_action(context_.get(), SPNG_CRC_ERROR, SPNG_CRC_ERROR));
    check(picture_, spng_set_chunk_limits(context_.get(), kMostKeptBytes, kMostKeptBytes));
    check(picture_, spng_set_png_buffer(context_.get(), picture.bytes.data(), picture.bytes.size()));
    check(picture_, spng_get_ihdr(context_.get(), &header_));
  }

  const spng_ihdr& header() const { return header_; }
  ImageSize size() const { return {header_.width, header_.height}; }

  void decode(Image& image) {
    std::size_t size_bytes = 0;
    check(picture_, spng_decoded_image_size(context_.get(), SPNG_FMT_RGB8, &size_bytes));
    require(size_bytes == image.rgb.size(), "libspng needs {} bytes for {}", size_bytes, image.rgb.size());
    check(picture_, spng_decode_image(context_.get(), image.rgb.data(), size_bytes, SPNG_FMT_RGB8, 0));
    // The checksum of the last data follows the last row. A missing end changes no pixel.
    const int rest = spng_decode_chunks(context_.get());
    if (rest == SPNG_ECHUNK_CRC) check(picture_, rest);
  }

 private:
  const PictureBytes& picture_;
  std::unique_ptr<spng_ctx, decltype(&spng_ctx_free)> context_;
  spng_ihdr header_{};
};

std::int64_t samples_of(std::uint8_t color_type) {
  switch (color_type) {
    case SPNG_COLOR_TYPE_TRUECOLOR:
      return 3;
    case SPNG_COLOR_TYPE_GRAYSCALE_ALPHA:
      return 2;
    case SPNG_COLOR_TYPE_TRUECOLOR_ALPHA:
      return 4;
    default:
      return 1;
  }
}

// A file that cannot hold its rows is refused before they get memory.
void check_content(const PictureBytes& picture, const spng_ihdr& header) {
  const std::int64_t row_bits = samples_of(header.color_type) * header.bit_depth * std::int64_t{header.width};
  const std::int64_t content_bytes = (row_bits + 7) / 8 * std::int64_t{header.height};
  const auto file_bytes = static_cast<std::int64_t>(picture.bytes.size());
  if (content_bytes / kMostInflation <= file_bytes) return;
  refuse_truncated(picture, fmt::format("{} x {} pixels take at least {} bytes of PNG, the file has {}", header.width,
                                        header.height, content_bytes / kMostInflation, file_bytes));
}

}  // namespace

ImageSize png_size(const PictureBytes& picture) { return PngReader(picture).size(); }

Image decode_png(const PictureBytes& picture, const ImageLimits& limits) {
  PngReader reader(picture);
  const spng_ihdr& header = reader.header();
  check_size(picture, reader.size(), limits);
  if (header.color_type == SPNG_COLOR_TYPE_GRAYSCALE && header.bit_depth == 16) {
    config_error("{}: a 16-bit grey picture, whose values above 255 would become white; scale it to 8 bits",
                 escaped(picture.name));
  }
  check_content(picture, header);
  Image image = blank_image(reader.size());
  reader.decode(image);
  return image;
}

}  // namespace loom::images
