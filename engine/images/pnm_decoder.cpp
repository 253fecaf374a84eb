#include "engine/images/pnm_decoder.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <string_view>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::images {
namespace {

constexpr std::size_t kLongestToken = 10;
constexpr std::string_view kBlanks = " \t\n\v\f\r";

struct PnmHeader {
  bool grey = false;
  ImageSize size;
  std::int64_t largest = 0;  // the value that is white
  std::size_t data_at = 0;
};

// The next word of a header; comments end at an end of line.
class HeaderWords {
 public:
  explicit HeaderWords(const PictureBytes& picture)
      : picture_(picture), text_(reinterpret_cast<const char*>(picture.bytes.data()), picture.bytes.size()) {}

  std::size_t at() const { return at_; }

  std::int64_t number(std::string_view what) {
    const std::string word = next();
    const bool digits = !word.empty() && word.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || word.size() > kLongestToken) {
      config_error("{}: the {} in the PPM header is '{}'; use a whole number of at most {} digits",
                   escaped(picture_.name), what, shown_text(word), kLongestToken);
    }
    return std::stoll(word);
  }

 private:
  std::string next() {
    std::string word;
    while (word.size() <= kLongestToken) {
      if (at_ == text_.size()) refuse_truncated(picture_, "the PPM header has no end");
      const char c = text_[at_++];
      if (c == '#') {
        at_ = std::min(text_.find_first_of("\r\n", at_), text_.size() - 1) + 1;
      } else if (kBlanks.find(c) == std::string_view::npos) {
        word += c;
      } else if (!word.empty()) {
        break;
      }
    }
    return word;
  }

  const PictureBytes& picture_;
  const std::string_view text_;
  std::size_t at_ = 2;
};

PnmHeader read_header(const PictureBytes& picture) {
  HeaderWords words(picture);
  PnmHeader header;
  header.grey = picture.bytes[1] == std::byte{'5'};
  header.size.width = words.number("width");
  header.size.height = words.number("height");
  header.largest = words.number("largest value");
  header.data_at = words.at();
  if (header.largest < 1 || header.largest > 65535) {
    config_error("{}: the largest value in the PPM header is {}; use 1 to 65535", escaped(picture.name),
                 header.largest);
  }
  return header;
}

// Sample -> byte. A sample above the largest value is white.
std::vector<std::uint8_t> byte_table(std::int64_t largest) {
  std::vector<std::uint8_t> table(largest > 255 ? 65536 : 256, 255);
  for (std::int64_t value = 0; value <= largest; ++value) {
    const double scaled = static_cast<double>(value) / static_cast<double>(largest) * 255;
    table[static_cast<std::size_t>(value)] = static_cast<std::uint8_t>(std::min(255.0, std::nearbyint(scaled)));
  }
  return table;
}

void fill(Image& image, const PnmHeader& header, const std::uint8_t* samples) {
  const auto table = byte_table(header.largest);
  const bool wide = header.largest > 255;
  const std::size_t copies = header.grey ? 3 : 1;
  for (std::size_t i = 0; i < image.rgb.size(); i += copies) {
    const std::size_t sample = wide ? std::size_t{samples[0]} << 8 | samples[1] : samples[0];
    std::fill_n(image.rgb.begin() + static_cast<std::ptrdiff_t>(i), copies, table[sample]);
    samples += wide ? 2 : 1;
  }
}

}  // namespace

ImageSize pnm_size(const PictureBytes& picture) {
  const ImageSize size = read_header(picture).size;
  check_sides(picture, size);
  return size;
}

Image decode_pnm(const PictureBytes& picture, const ImageLimits& limits) {
  const PnmHeader header = read_header(picture);
  check_size(picture, header.size, limits);
  if (header.grey && header.largest > 255) {
    config_error("{}: a 16-bit grey picture, whose values above 255 would become white; scale it to 8 bits",
                 escaped(picture.name));
  }
  const std::int64_t sample_bytes = header.largest > 255 ? 2 : 1;
  const std::int64_t content_bytes = header.size.width * header.size.height * (header.grey ? 1 : 3) * sample_bytes;
  const auto rest_bytes = static_cast<std::int64_t>(picture.bytes.size() - header.data_at);
  if (rest_bytes < content_bytes) {
    refuse_truncated(picture, fmt::format("{} x {} pixels take {} bytes, {} follow the header", header.size.width,
                                          header.size.height, content_bytes, rest_bytes));
  }
  Image image = blank_image(header.size);
  const auto* samples = reinterpret_cast<const std::uint8_t*>(picture.bytes.data()) + header.data_at;
  if (!header.grey && header.largest == 255) {
    std::copy_n(samples, image.rgb.size(), image.rgb.begin());
  } else {
    fill(image, header, samples);
  }
  return image;
}

}  // namespace loom::images
