#include "examples/pretrain_vlm/captioned_shapes.h"

#include <array>

#include "engine/core/rng.h"

namespace examples {
namespace {

struct Colour {
  const char* name;
  std::array<float, 3> rgb;
};
constexpr std::array<Colour, 4> kColours{
    {{"red", {1, 0, 0}}, {"green", {0, 1, 0}}, {"blue", {0, 0, 1}}, {"white", {1, 1, 1}}}};
constexpr std::array<const char*, 4> kCorners{"top left", "top right", "bottom left", "bottom right"};
constexpr double kNoise = 0.1;

}  // namespace

int caption_of_sample(std::uint64_t seed, std::int64_t sample) {
  return static_cast<int>(kCaptions *
                          loom::uniform_at(loom::stream_key(seed, "caption"), static_cast<std::uint64_t>(sample)));
}

std::string caption_text(int caption) {
  std::string text = std::string("a ") + kColours[caption % 4].name + " square, " + kCorners[caption / 4] + ".";
  text.resize(kCaptionBytes, ' ');
  return text;
}

void draw(std::uint64_t seed, std::int64_t sample, std::int64_t size, std::span<float> pixels) {
  const int caption = caption_of_sample(seed, sample);
  const auto& rgb = kColours[caption % 4].rgb;
  const bool right = caption / 4 % 2 == 1;
  const bool bottom = caption / 4 / 2 == 1;
  const std::uint64_t key = loom::stream_key(seed, "noise");
  const auto first = static_cast<std::uint64_t>(sample) * pixels.size();
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const bool in_square = (at % size >= size / 2) == right && (at / size % size >= size / 2) == bottom;
    const float colour = in_square ? rgb[static_cast<std::size_t>(at / (size * size))] : 0.5F;
    pixels[i] = colour + static_cast<float>(kNoise * (loom::uniform_at(key, first + i) - 0.5));
  }
}

}  // namespace examples
