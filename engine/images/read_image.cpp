#include "engine/images/read_image.h"

#include <algorithm>
#include <system_error>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/images/jpeg_decoder.h"
#include "engine/images/picture_format.h"
#include "engine/images/png_decoder.h"
#include "engine/images/pnm_decoder.h"
#include "engine/io/mapped_file.h"

namespace loom::images {
namespace {

// Where the size of nearly every file is.
constexpr std::int64_t kFirstBytes = std::int64_t{64} << 10;

io::MappedFile open_picture(const std::filesystem::path& path) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  const std::string name = escaped(path.string());
  if (status.type() == std::filesystem::file_type::not_found) {
    config_error("{}: no such file; check the path, and the folder that relative paths begin at", name);
  }
  if (std::filesystem::is_directory(status)) config_error("{}: a folder; give the path of a picture", name);
  return io::MappedFile(path);
}

// Read, not mapped: a file that others shorten must not end the process.
std::vector<std::byte> first_bytes(const io::MappedFile& file, std::int64_t count) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(std::min(count, file.identity().size_bytes)));
  if (!bytes.empty()) io::FileReader(file).read(0, bytes);
  return bytes;
}

void check_file_size(const io::MappedFile& file, const ImageLimits& limits) {
  if (file.identity().size_bytes <= limits.max_file_bytes) return;
  config_error("{}: {} bytes, a picture's file may have {}; make the picture smaller, or leave it out",
               escaped(file.path().string()), file.identity().size_bytes, limits.max_file_bytes);
}

std::optional<ImageSize> size_of(const PictureBytes& picture) {
  switch (format_of(picture)) {
    case PictureFormat::kPng:
      return png_size(picture);
    case PictureFormat::kJpeg:
      return jpeg_size(picture);
    case PictureFormat::kPnm:
      return pnm_size(picture);
  }
  return std::nullopt;
}

}  // namespace

Image decode_image(std::span<const std::byte> bytes, const std::string& name, const ImageLimits& limits) {
  const PictureBytes picture{bytes, name};
  switch (format_of(picture)) {
    case PictureFormat::kPng:
      return decode_png(picture, limits);
    case PictureFormat::kJpeg:
      return decode_jpeg(picture, limits);
    case PictureFormat::kPnm:
      return decode_pnm(picture, limits);
  }
  return {};
}

Image read_image(const std::filesystem::path& path, const ImageLimits& limits) {
  const io::MappedFile file = open_picture(path);
  check_file_size(file, limits);
  return decode_image(first_bytes(file, file.identity().size_bytes), path.string(), limits);
}

ImageSize read_image_size(const std::filesystem::path& path) {
  const io::MappedFile file = open_picture(path);
  const std::string name = path.string();
  if (const auto size = size_of({first_bytes(file, kFirstBytes), name})) return *size;
  // A JPEG file with a long profile or a preview in front.
  check_file_size(file, ImageLimits{});
  const auto bytes = first_bytes(file, file.identity().size_bytes);
  const PictureBytes picture{bytes, name};
  if (const auto size = size_of(picture)) return *size;
  refuse_truncated(picture, "the JPEG header goes on after its " + std::to_string(bytes.size()) + " bytes");
}

}  // namespace loom::images
