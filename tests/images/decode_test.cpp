// Promise: PNG, JPEG, PGM and PPM files of every kind that is read give the RGB bytes of Pillow's convert("RGB").
// World:   files made by libspng, libjpeg and by hand in the test's folder.
#include <cstdlib>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <thread>

#include "engine/core/error.h"
#include "engine/images/read_image.h"
#include "tests/images/pictures.h"
#include "tests/support/files.h"

namespace loom::images {
namespace {

using test::fresh_folder;
using test::write_file;
using ::testing::ElementsAre;
using ::testing::Le;

using Bytes = std::vector<std::uint8_t>;

Bytes rgb_of(const std::string& file) { return decode_image(bytes_of(file), "picture").rgb; }

TEST(Png, OfRgbKeepsItsBytes) {
  const Image image = patterned(31, 17);
  EXPECT_EQ(decode_image(bytes_of(png_file(image)), "picture"), image);
}

TEST(Png, OfGreyHasThreeEqualChannels) {
  EXPECT_THAT(rgb_of(png_file({.width = 2, .height = 1, .color_type = 0}, Bytes{7, 200})),
              ElementsAre(7, 7, 7, 200, 200, 200));
}

TEST(Png, OfFewBitsIsSpreadOver255) {
  EXPECT_THAT(rgb_of(png_file({.width = 2, .height = 1, .bit_depth = 1, .color_type = 0}, Bytes{0x40})),
              ElementsAre(0, 0, 0, 255, 255, 255));
  EXPECT_THAT(rgb_of(png_file({.width = 2, .height = 1, .bit_depth = 2, .color_type = 0}, Bytes{0x60})),
              ElementsAre(85, 85, 85, 170, 170, 170));
  EXPECT_THAT(rgb_of(png_file({.width = 2, .height = 1, .bit_depth = 4, .color_type = 0}, Bytes{0x3e})),
              ElementsAre(51, 51, 51, 238, 238, 238));
}

TEST(Png, OfAPaletteHasItsColours) {
  const PngShape shape{
      .width = 3, .height = 1, .bit_depth = 2, .color_type = 3, .palette = {1, 2, 3, 4, 5, 6, 7, 8, 9}};
  EXPECT_THAT(rgb_of(png_file(shape, Bytes{0x84})), ElementsAre(7, 8, 9, 1, 2, 3, 4, 5, 6));
}

TEST(Png, LosesItsAlpha) {
  EXPECT_THAT(rgb_of(png_file({.width = 2, .height = 1, .color_type = 6}, Bytes{1, 2, 3, 0, 4, 5, 6, 128})),
              ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(rgb_of(png_file({.width = 2, .height = 1, .color_type = 4}, Bytes{9, 0, 8, 255})),
              ElementsAre(9, 9, 9, 8, 8, 8));
}

TEST(Png, OfSixteenBitsKeepsTheHighBytes) {
  const Bytes rgb{0xff, 1, 0x7f, 2, 0x80, 3};  // libspng takes samples in the machine's order
  EXPECT_THAT(rgb_of(png_file({.width = 1, .height = 1, .bit_depth = 16, .color_type = 2}, rgb)), ElementsAre(1, 2, 3));
  const Bytes rgba{0xff, 1, 0x7f, 2, 0x80, 3, 0, 0};
  EXPECT_THAT(rgb_of(png_file({.width = 1, .height = 1, .bit_depth = 16, .color_type = 6}, rgba)),
              ElementsAre(1, 2, 3));
  const Bytes grey_alpha{0xfe, 9, 0, 0};
  EXPECT_THAT(rgb_of(png_file({.width = 1, .height = 1, .bit_depth = 16, .color_type = 4}, grey_alpha)),
              ElementsAre(9, 9, 9));
}

TEST(Png, OfInterlacedRowsIsThePicture) {
  const Image image = patterned(13, 21);
  const PngShape shape{.width = 13, .height = 21, .interlaced = true};
  EXPECT_EQ(rgb_of(png_file(shape, image.rgb)), image.rgb);
}

// The largest distance of two pictures' bytes.
int distance(const Bytes& a, const Bytes& b) {
  EXPECT_EQ(a.size(), b.size());
  int largest = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, std::abs(int{a[i]} - int{b[i]}));
  }
  return largest;
}

// A slope that JPEG keeps nearly.
Image slope(int width, int height) {
  Image image{.width = width, .height = height, .rgb = {}};
  for (int i = 0; i < width * height; ++i) {
    for (const int value : {40 + i % width, 90 + i / width, 160 - i % width}) {
      image.rgb.push_back(static_cast<std::uint8_t>(value));
    }
  }
  return image;
}

TEST(Jpeg, GivesThePictureNearly) {
  const Image image = slope(50, 37);
  for (const bool progressive : {false, true}) {
    const auto file = jpeg_file({.width = 50, .height = 37, .progressive = progressive}, image.rgb);
    const Image decoded = decode_image(bytes_of(file), "picture");
    EXPECT_EQ(decoded.size(), image.size());
    EXPECT_THAT(distance(decoded.rgb, image.rgb), Le(4));
  }
}

// A progressive picture of one scan: the other coefficients are 0, not those of the picture before.
TEST(Jpeg, DoesNotDependOnThePictureBefore) {
  const auto before = jpeg_file({.width = 200, .height = 90, .progressive = true}, patterned(200, 90).rgb);
  const auto whole = jpeg_file({.width = 50, .height = 37, .progressive = true}, slope(50, 37).rgb);
  const std::size_t scan = whole.find("\xff\xda") + 2;
  const std::string one_scan =
      whole.substr(0, std::min(whole.find("\xff\xda", scan), whole.find("\xff\xc4", scan))) + "\xff\xd9";
  for (const std::string& file : {whole, one_scan}) {
    rgb_of(before);
    const Bytes after = rgb_of(file);
    Bytes alone;
    std::thread([&] { alone = rgb_of(file); }).join();
    EXPECT_EQ(after, alone);
  }
  EXPECT_THAT(distance(rgb_of(one_scan), rgb_of(whole)), Le(16));
}

TEST(Jpeg, OfGreyHasThreeEqualChannels) {
  const auto file = jpeg_file({.width = 16, .height = 9, .channels = 1}, Bytes(16 * 9, 77));
  EXPECT_EQ(rgb_of(file), Bytes(3 * 16 * 9, 77));
}

// Stored as 255 - ink: cyan 10, magenta 20, yellow 30, black 40 is (207, 198, 190) for Pillow.
TEST(Jpeg, OfCmykIsWhatTheInksLeave) {
  Bytes rows;
  for (int i = 0; i < 64; ++i) rows.insert(rows.end(), {245, 235, 225, 215});
  Bytes wanted;
  for (int i = 0; i < 64; ++i) wanted.insert(wanted.end(), {207, 198, 190});
  const auto file = jpeg_file({.width = 8, .height = 8, .channels = 4}, rows);
  EXPECT_THAT(distance(rgb_of(file), wanted), Le(1));
}

TEST(Pnm, OfBytesIsTheseBytes) {
  const Image image = patterned(5, 4);
  EXPECT_EQ(decode_image(bytes_of(ppm_file(image)), "picture"), image);
  EXPECT_THAT(rgb_of("P5 # grey\n2#wide\r\n # one row\n\t1 255\n\x05\n"), ElementsAre(5, 5, 5, 10, 10, 10));
}

TEST(Pnm, OfOtherLargestValuesIsScaled) {
  EXPECT_THAT(rgb_of(std::string("P5 5 1 15 ") + std::string("\x00\x01\x07\x0f\x10", 5)),
              ElementsAre(0, 0, 0, 17, 17, 17, 119, 119, 119, 255, 255, 255, 255, 255, 255));
  // 256 / 1000 * 255 = 65.28; 0; 1000
  EXPECT_THAT(rgb_of(std::string("P6 1 1 1000\n\x01\x00\x00\x00\x03\xe8", 18)), ElementsAre(65, 0, 255));
}

TEST(ReadImage, KnowsTheFormatByTheContent) {
  const auto folder = fresh_folder();
  const Image image = patterned(7, 3);
  EXPECT_EQ(read_image(write_file(folder / "a.jpg", png_file(image))), image);
  EXPECT_EQ(read_image(write_file(folder / "noname", ppm_file(image))), image);
}

TEST(ReadImageSize, IsThatOfThePicture) {
  const auto folder = fresh_folder();
  EXPECT_EQ(read_image_size(write_file(folder / "a", png_file(patterned(7, 3)))), (ImageSize{7, 3}));
  EXPECT_EQ(read_image_size(write_file(folder / "b", ppm_file(patterned(4, 9)))), (ImageSize{4, 9}));
  const auto jpeg = jpeg_file({.width = 50, .height = 37}, slope(50, 37).rgb);
  EXPECT_EQ(read_image_size(write_file(folder / "c", jpeg)), (ImageSize{50, 37}));
}

// Two comments of 65533 bytes between the first two bytes and the rest.
TEST(ReadImageSize, IsFoundBehindLongCommentsOfAJpeg) {
  const auto jpeg = jpeg_file({.width = 50, .height = 37}, slope(50, 37).rgb);
  const std::string comment = "\xff\xfe\xff\xff" + std::string(65533, 'x');
  const auto path = write_file(fresh_folder() / "a.jpg", jpeg.substr(0, 2) + comment + comment + jpeg.substr(2));
  EXPECT_EQ(read_image_size(path), (ImageSize{50, 37}));
  EXPECT_EQ(read_image(path), decode_image(bytes_of(jpeg), "picture"));
}

TEST(ReadImageSize, NeedsNoPixels) {
  const auto file = png_file(patterned(700, 300));
  EXPECT_EQ(read_image_size(write_file(fresh_folder() / "a", file.substr(0, 100))), (ImageSize{700, 300}));
}

}  // namespace
}  // namespace loom::images
