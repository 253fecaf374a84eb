// Promise: no hostile file gives a picture or takes unbounded memory; the error names the file, the defect and the next
//          step.
// World:   files made by hand, and good files with damage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "engine/core/error.h"
#include "engine/core/rng.h"
#include "engine/images/read_image.h"
#include "tests/images/pictures.h"
#include "tests/support/files.h"

namespace loom::images {
namespace {

using test::fresh_folder;
using test::message_of;
using test::write_file;
using ::testing::HasSubstr;
using ::testing::Lt;
using namespace std::string_literals;

// The error of a file with these bytes, without its name.
std::string refusal(const std::string& bytes, const ImageLimits& limits = {}) {
  const std::string message = message_of<ConfigError>([&] { decode_image(bytes_of(bytes), "a.png", limits); });
  EXPECT_TRUE(message.starts_with("a.png: ")) << message;
  return message.substr(std::min<std::size_t>(7, message.size()));
}

std::int64_t peak_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

TEST(HostilePictures, ThatAreNoFilesAreRefused) {
  const auto folder = fresh_folder();
  const std::string name = folder.string();
  EXPECT_EQ(message_of<ConfigError>([&] { read_image(folder / "a.png"); }),
            name + "/a.png: no such file; check the path, and the folder that relative paths begin at");
  EXPECT_EQ(message_of<ConfigError>([&] { read_image(folder); }), name + ": a folder; give the path of a picture");
  EXPECT_EQ(message_of<ConfigError>([&] { read_image_size(folder); }), name + ": a folder; give the path of a picture");
  EXPECT_EQ(message_of<ConfigError>([&] { read_image(write_file(folder / "b.png", "")); }),
            name + "/b.png: empty; fetch the file again");
  EXPECT_THROW(read_image("/dev/zero"), ConfigError);
}

TEST(HostilePictures, WithNamesOfOtherTextAreEscaped) {
  EXPECT_EQ(message_of<ConfigError>([] { decode_image({}, "a\n\x1b[2J.png"); }),
            "a\\n\\x1b[2J.png: empty; fetch the file again");
}

TEST(HostilePictures, ThatAreNoPicturesShowTheirFirstBytes) {
  EXPECT_EQ(refusal("Hello,\n\x01\xff world"),
            "not a picture, its first bytes are 'Hello,\\n\\x01\\xff wo'; use a PNG, JPEG, PPM (P6) or PGM (P5) file");
  EXPECT_EQ(refusal("P"), "not a picture, its first bytes are 'P'; use a PNG, JPEG, PPM (P6) or PGM (P5) file");
}

TEST(HostilePictures, OfOtherFormatsAreRefusedByName) {
  EXPECT_EQ(refusal("GIF89a..."), "a GIF picture, which is not read; convert it to PNG or JPEG");
  EXPECT_EQ(refusal("RIFF\1\2\3\4WEBPVP8 "), "a WebP picture, which is not read; convert it to PNG or JPEG");
  EXPECT_EQ(refusal("BM......"), "a BMP picture, which is not read; convert it to PNG or JPEG");
  EXPECT_EQ(refusal("II*\0...."s), "a TIFF picture, which is not read; convert it to PNG or JPEG");
  EXPECT_EQ(refusal("\0\0\0\x20"
                    "ftypavif"s),
            "an AVIF picture, which is not read; convert it to PNG or JPEG");
  EXPECT_EQ(refusal("P3\n1 1\n255\n1 2 3\n"), "a plain PPM picture, which is not read; convert it to PNG or JPEG");
}

TEST(HostilePictures, OfSixteenBitGreyAreRefused) {
  const std::vector<std::uint8_t> sample{1, 2};
  EXPECT_EQ(refusal(png_file({.width = 1, .height = 1, .bit_depth = 16, .color_type = 0}, sample)),
            "a 16-bit grey picture, whose values above 255 would become white; scale it to 8 bits");
  EXPECT_EQ(refusal("P5 1 1 65535\n\1\2"),
            "a 16-bit grey picture, whose values above 255 would become white; scale it to 8 bits");
}

// --- Truncated

TEST(HostilePictures, ThatEndEarlyAreRefusedAtEveryByte) {
  const Image image = patterned(24, 16);
  const std::string png = png_file(image);
  // The last row is complete before the checksum of its chunk and the end chunk (4 + 12 bytes) and that of its stream.
  for (std::size_t size = 1; size + 21 < png.size(); ++size) {
    EXPECT_THROW(decode_image(bytes_of(png.substr(0, size)), "a.png"), ConfigError) << size << " of " << png.size();
  }
  const std::string jpeg = jpeg_file({.width = 24, .height = 16}, image.rgb);
  for (std::size_t size = 1; size < jpeg.size(); ++size) {
    EXPECT_THROW(decode_image(bytes_of(jpeg.substr(0, size)), "a.jpg"), ConfigError) << size << " of " << jpeg.size();
  }
  const std::string ppm = ppm_file(image);
  for (std::size_t size = 1; size < ppm.size(); ++size) {
    EXPECT_THROW(decode_image(bytes_of(ppm.substr(0, size)), "a.ppm"), ConfigError) << size << " of " << ppm.size();
  }
}

TEST(HostilePictures, ThatEndEarlySayHowLongTheyAre) {
  const Image image = patterned(24, 16);
  EXPECT_EQ(refusal(png_file(image).substr(0, 300)),
            "truncated: the PNG picture has more rows than its 300 bytes; fetch the file again");
  EXPECT_EQ(refusal(jpeg_file({.width = 24, .height = 16}, image.rgb).substr(0, 700)),
            "truncated: the JPEG picture goes on after its 700 bytes; fetch the file again");
  EXPECT_EQ(refusal("P6 24 16 255\nabc"),
            "truncated: 24 x 16 pixels take 1152 bytes, 3 follow the header; fetch the file again");
  EXPECT_EQ(refusal("P6 24 "), "truncated: the PPM header has no end; fetch the file again");
}

// --- Sizes

// The checksum of a PNG chunk, in the bits of zlib.
std::uint32_t crc_of(std::string_view bytes) {
  std::uint32_t crc = ~0U;
  for (const char byte : bytes) {
    crc ^= static_cast<std::uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0xedb88320U : crc >> 1;
  }
  return ~crc;
}

std::string big_endian(std::uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

std::string with_size(std::string png, std::uint32_t width, std::uint32_t height) {
  png.replace(16, 8, big_endian(width) + big_endian(height));
  return png.replace(29, 4, big_endian(crc_of(std::string_view(png).substr(12, 17))));
}

TEST(HostilePictures, OfTooManyPixelsAreRefusedBeforeTheyGetMemory) {
  const std::string png = png_file(patterned(24, 16));
  const std::int64_t before = peak_bytes();
  EXPECT_EQ(refusal(with_size(png, 100000, 60000)),
            "100000 x 60000 = 6000000000 pixels, allowed are 178956970; make the picture smaller, or leave it out");
  EXPECT_EQ(refusal(with_size(png, 1000000, 1000000)),
            "1000000 x 1000000 = 1000000000000 pixels, allowed are 178956970; make the picture smaller, or "
            "leave it out");
  EXPECT_EQ(refusal("P6 4000000000 4000000000 255\n"),
            "4000000000 x 4000000000 = too many pixels, allowed are 178956970; make the picture smaller, or leave it "
            "out");
  std::string jpeg = jpeg_file({.width = 24, .height = 16}, patterned(24, 16).rgb);
  const std::size_t frame = jpeg.find("\xff\xc0");
  jpeg.replace(frame + 5, 4, "\xff\x00\xff\x00"s);
  EXPECT_EQ(refusal(jpeg),
            "65280 x 65280 = 4261478400 pixels, allowed are 178956970; make the picture smaller, or leave it out");
  EXPECT_THAT(peak_bytes() - before, Lt(std::int64_t{64} << 20));
}

TEST(HostilePictures, HaveTheLimitOfTheirReader) {
  EXPECT_EQ(refusal(png_file(patterned(24, 16)), {.max_pixels = 383}),
            "24 x 16 = 384 pixels, allowed are 383; make the picture smaller, or leave it out");
  EXPECT_NO_THROW(decode_image(bytes_of(png_file(patterned(24, 16))), "a.png", {.max_pixels = 384}));
  const auto path = write_file(fresh_folder() / "a.ppm", ppm_file(patterned(24, 16)));
  EXPECT_EQ(message_of<ConfigError>([&] { read_image(path, {.max_file_bytes = 1000}); }),
            path.string() + ": 1165 bytes, a picture's file may have 1000; make the picture smaller, or leave it out");
}

// 13000 x 13000 pixels would take 483 MiB. Neither deflate nor a Huffman code can make them of the files' bytes.
TEST(HostilePictures, WithMorePixelsThanTheirFileCanHoldGetNoMemory) {
  const std::string png = with_size(png_file(patterned(24, 16)), 13000, 13000);
  const std::int64_t before = peak_bytes();
  EXPECT_THAT(refusal(png),
              HasSubstr("truncated: 13000 x 13000 pixels take at least 491279 bytes of PNG, the file has "));
  std::string jpeg = jpeg_file({.width = 24, .height = 16}, patterned(24, 16).rgb);
  jpeg.replace(jpeg.find("\xff\xc0") + 5, 4, "\x32\xc8\x32\xc8");
  EXPECT_THAT(refusal(jpeg),
              HasSubstr("truncated: 13000 x 13000 pixels take at least 330078 bytes of JPEG, the file has "));
  EXPECT_THAT(refusal("P6 13000 13000 255\nabc"),
              HasSubstr("truncated: 13000 x 13000 pixels take 507000000 bytes, 3 "));
  EXPECT_THAT(peak_bytes() - before, Lt(std::int64_t{64} << 20));
}

TEST(HostilePictures, WithoutPixelsAreRefused) {
  EXPECT_EQ(refusal("P6 0 5 255\n"), "0 x 5 pixels; both sides must be at least 1, use another file");
  EXPECT_THAT(refusal(with_size(png_file(patterned(2, 2)), 0, 5)), HasSubstr("not a valid PNG picture"));
  const auto path = write_file(fresh_folder() / "a.ppm", "P6 7 0 255\n");
  EXPECT_EQ(message_of<ConfigError>([&] { read_image_size(path); }),
            path.string() + ": 7 x 0 pixels; both sides must be at least 1, use another file");
}

TEST(HostilePictures, WithMoreRowsThanDataAreTruncated) {
  EXPECT_THAT(refusal(with_size(png_file(patterned(24, 16)), 24, 17)),
              HasSubstr("truncated: the PNG picture has more "));
}

// --- Damage

TEST(HostilePictures, WithAWrongChecksumAreRefused) {
  std::string png = png_file(patterned(24, 16));
  const std::string damaged = "damaged: the checksum (CRC) of a PNG chunk is wrong; fetch the file again";
  const std::size_t data = png.find("IDAT");
  std::string header = png;
  header[29] ^= 1;
  EXPECT_EQ(refusal(header), damaged);
  std::string checksum = png;
  checksum[png.size() - 14] ^= 1;  // of the data, in front of the 12 bytes of the end chunk
  EXPECT_EQ(refusal(checksum), damaged);
  png[data + 40] ^= 1;
  EXPECT_THROW(decode_image(bytes_of(png), "a.png"), ConfigError);
}

TEST(HostilePictures, WithAnotherLargestValueAreRefused) {
  EXPECT_EQ(refusal("P5 1 1 0\n1"), "the largest value in the PPM header is 0; use 1 to 65535");
  EXPECT_EQ(refusal("P5 1 1 65536\n1"), "the largest value in the PPM header is 65536; use 1 to 65535");
  EXPECT_EQ(refusal("P5 -1 1 255\n1"), "the width in the PPM header is '-1'; use a whole number of at most 10 digits");
  EXPECT_EQ(refusal("P5 1 123456789012 255\n1"),
            "the height in the PPM header is '12345678901'; use a whole number of at most 10 digits");
}

TEST(HostilePictures, OfJpegWithBrokenTablesNameTheReason) {
  std::string jpeg = jpeg_file({.width = 24, .height = 16}, patterned(24, 16).rgb);
  jpeg[jpeg.find("\xff\xc4") + 3] = 5;  // a Huffman table of 3 bytes
  EXPECT_THAT(refusal(jpeg), HasSubstr("not a valid JPEG picture ("));
}

// A progressive picture whose scans are given again and again.
TEST(HostilePictures, OfTooManyScansAreRefused) {
  const std::string jpeg = jpeg_file({.width = 8, .height = 8, .progressive = true}, patterned(8, 8).rgb);
  const std::size_t first = jpeg.find("\xff\xc4");
  const std::string scans = jpeg.substr(first, jpeg.size() - 2 - first);
  std::string many = jpeg.substr(0, first);
  for (int i = 0; i < 600; ++i) many += scans;
  EXPECT_EQ(refusal(many + "\xff\xd9"), "a JPEG picture of more than 500 scans; write it anew");
}

// Bytes changed, cut and inserted at random: an answer of the file's size, or a ConfigError.
TEST(HostilePictures, WithRandomDamageAreReadOrRefused) {
  const Image image = patterned(24, 16);
  const std::string good[] = {png_file(image), png_file({.width = 24, .height = 16, .interlaced = true}, image.rgb),
                              jpeg_file({.width = 24, .height = 16}, image.rgb),
                              jpeg_file({.width = 24, .height = 16, .progressive = true}, image.rgb), ppm_file(image)};
  int refused = 0;
  for (std::uint64_t mutant = 0; mutant < 3000; ++mutant) {
    const Philox4 draw = philox(20261126, mutant);
    std::string bytes = good[mutant % std::size(good)];
    const std::size_t place = draw[0] % bytes.size();
    if (draw[1] % 8 == 0) {
      bytes.resize(place);
    } else if (draw[1] % 8 == 1) {
      bytes.insert(place, 1 + draw[3] % 3, static_cast<char>(draw[2]));
    } else {
      bytes[place] = static_cast<char>(draw[2]);
    }
    try {
      const Image read = decode_image(bytes_of(bytes), "a.png", {.max_pixels = 1 << 16});
      ASSERT_EQ(static_cast<std::int64_t>(read.rgb.size()), 3 * read.width * read.height) << "mutant " << mutant;
    } catch (const ConfigError& error) {
      ++refused;
      ASSERT_TRUE(std::string(error.what()).starts_with("a.png: ")) << error.what();
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace loom::images
