#include "tests/images/pictures.h"

#include <jpeglib.h>
#include <spng.h>

#include <cstdio>
#include <cstdlib>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <memory>

namespace loom::images {

Image patterned(std::int64_t width, std::int64_t height, std::uint32_t seed) {
  Image image{.width = width, .height = height, .rgb = {}};
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t x = 0; x < width; ++x) {
      const auto word = static_cast<std::uint32_t>(x * 73 + y * 151 + (x * y) % 17) * (2 * seed + 1);
      image.rgb.push_back(static_cast<std::uint8_t>(word));
      image.rgb.push_back((x / 5 + y / 3) % 2 == 0 ? 255 : 0);
      image.rgb.push_back(static_cast<std::uint8_t>(x * 255 / std::max<std::int64_t>(1, width - 1) + seed));
    }
  }
  return image;
}

std::string png_file(const PngShape& shape, std::span<const std::uint8_t> rows) {
  const std::unique_ptr<spng_ctx, decltype(&spng_ctx_free)> context(spng_ctx_new(SPNG_CTX_ENCODER), spng_ctx_free);
  spng_ihdr header{.width = shape.width,
                   .height = shape.height,
                   .bit_depth = shape.bit_depth,
                   .color_type = shape.color_type,
                   .compression_method = 0,
                   .filter_method = 0,
                   .interlace_method = static_cast<std::uint8_t>(shape.interlaced ? 1 : 0)};
  EXPECT_EQ(spng_set_option(context.get(), SPNG_ENCODE_TO_BUFFER, 1), 0);
  EXPECT_EQ(spng_set_ihdr(context.get(), &header), 0);
  if (!shape.palette.empty()) {
    spng_plte palette{};
    palette.n_entries = static_cast<std::uint32_t>(shape.palette.size() / 3);
    for (std::size_t i = 0; i < palette.n_entries; ++i) {
      palette.entries[i] = {shape.palette[3 * i], shape.palette[3 * i + 1], shape.palette[3 * i + 2], 0};
    }
    EXPECT_EQ(spng_set_plte(context.get(), &palette), 0);
  }
  const int code = spng_encode_image(context.get(), rows.data(), rows.size(), SPNG_FMT_PNG, SPNG_ENCODE_FINALIZE);
  EXPECT_EQ(code, 0) << spng_strerror(code);
  std::size_t size = 0;
  int error = 0;
  const std::unique_ptr<void, decltype(&std::free)> buffer(spng_get_png_buffer(context.get(), &size, &error),
                                                           std::free);
  return {static_cast<const char*>(buffer.get()), size};
}

std::string png_file(const Image& image) {
  return png_file(
      {.width = static_cast<std::uint32_t>(image.width), .height = static_cast<std::uint32_t>(image.height)},
      image.rgb);
}

std::string jpeg_file(const JpegShape& shape, std::span<const std::uint8_t> rows) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* buffer = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&jpeg, &buffer, &size);
  jpeg.image_width = static_cast<JDIMENSION>(shape.width);
  jpeg.image_height = static_cast<JDIMENSION>(shape.height);
  jpeg.input_components = shape.channels;
  jpeg.in_color_space = shape.channels == 1 ? JCS_GRAYSCALE : shape.channels == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, 95, TRUE);
  if (shape.progressive) jpeg_simple_progression(&jpeg);
  jpeg_start_compress(&jpeg, TRUE);
  const std::size_t row_bytes = static_cast<std::size_t>(shape.width) * static_cast<std::size_t>(shape.channels);
  while (jpeg.next_scanline < jpeg.image_height) {
    auto* row = const_cast<JSAMPROW>(rows.data() + jpeg.next_scanline * row_bytes);
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  std::string file(reinterpret_cast<const char*>(buffer), size);
  std::free(buffer);
  return file;
}

std::string ppm_file(const Image& image) {
  return fmt::format("P6\n{} {}\n255\n", image.width, image.height) + std::string(image.rgb.begin(), image.rgb.end());
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace loom::images
