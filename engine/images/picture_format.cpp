#include "engine/images/picture_format.h"

#include <algorithm>
#include <string_view>

#include "engine/core/checked.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::images {
namespace {

using namespace std::string_view_literals;

constexpr std::size_t kShownStart = 12;

struct Signature {
  std::size_t at;
  std::string_view text;
  std::string_view name;
};

// Formats that are known and not read.
constexpr Signature kOthers[] = {
    {0, "GIF8"sv, "a GIF picture"},
    {8, "WEBP"sv, "a WebP picture"},
    {0, "BM"sv, "a BMP picture"},
    {0, "II*\0"sv, "a TIFF picture"},
    {0, "MM\0*"sv, "a TIFF picture"},
    {4, "ftypavi"sv, "an AVIF picture"},
    {4, "ftyphei"sv, "a HEIF picture"},
    {4, "ftypmif1"sv, "a HEIF picture"},
    {4, "ftyp"sv, "an MP4 video"},
    {0, "\xff\x4f\xff\x51"sv, "a JPEG 2000 picture"},
    {0, "\0\0\0\x0cjP  "sv, "a JPEG 2000 picture"},
    {0, "\xff\x0a"sv, "a JPEG XL picture"},
    {0, "\0\0\0\x0cJXL "sv, "a JPEG XL picture"},
    {0, "P1"sv, "a plain PBM picture"},
    {0, "P2"sv, "a plain PGM picture"},
    {0, "P3"sv, "a plain PPM picture"},
    {0, "P4"sv, "a PBM picture"},
    {0, "P7"sv, "a PAM picture"},
    {0, "<svg"sv, "an SVG drawing"},
};

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool is_pnm(std::string_view text) {
  if (text.size() < 3 || text[0] != 'P' || (text[1] != '5' && text[1] != '6')) return false;
  return "\t\n\v\f\r #"sv.find(text[2]) != std::string_view::npos;
}

}  // namespace

PictureFormat format_of(const PictureBytes& picture) {
  const std::string_view text = text_of(picture.bytes);
  if (text.empty()) config_error("{}: empty; fetch the file again", escaped(picture.name));
  if (text.starts_with("\x89PNG\r\n\x1a\n"sv)) return PictureFormat::kPng;
  if (text.starts_with("\xff\xd8\xff"sv)) return PictureFormat::kJpeg;
  if (is_pnm(text)) return PictureFormat::kPnm;
  for (const Signature& other : kOthers) {
    if (text.size() < other.at || !text.substr(other.at).starts_with(other.text)) continue;
    config_error("{}: {}, which is not read; convert it to PNG or JPEG", escaped(picture.name), other.name);
  }
  config_error("{}: not a picture, its first bytes are '{}'; use a PNG, JPEG, PPM (P6) or PGM (P5) file",
               escaped(picture.name), shown_text(text.substr(0, kShownStart)));
}

void check_sides(const PictureBytes& picture, ImageSize size) {
  if (size.width >= 1 && size.height >= 1) return;
  config_error("{}: {} x {} pixels; both sides must be at least 1, use another file", escaped(picture.name), size.width,
               size.height);
}

void check_size(const PictureBytes& picture, ImageSize size, const ImageLimits& limits) {
  check_sides(picture, size);
  const auto pixels = checked_multiply(size.width, size.height);
  if (pixels && *pixels <= std::min(limits.max_pixels, kMostPixels)) return;
  config_error("{}: {} x {} = {} pixels, allowed are {}; make the picture smaller, or leave it out",
               escaped(picture.name), size.width, size.height, pixels ? std::to_string(*pixels) : "too many",
               std::min(limits.max_pixels, kMostPixels));
}

void refuse_truncated(const PictureBytes& picture, const std::string& detail) {
  config_error("{}: truncated: {}; fetch the file again", escaped(picture.name), detail);
}

Image blank_image(ImageSize size) {
  return {.width = size.width,
          .height = size.height,
          .rgb = std::vector<std::uint8_t>(static_cast<std::size_t>(3 * size.width * size.height))};
}

}  // namespace loom::images
