// Images with captions, drawn from a seed: a square of one of four colours in one of four corners, on a noisy ground,
// and the sentence that says so ("a red square, top left.").
//
// Sizes    an image is fp32 [3, size, size], channels first, values about 0 to 1. A caption is kCaptionBytes long,
//          filled up with blanks.
// Order    sample i is a function of (seed, i) alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace examples {

inline constexpr int kCaptions = 16;
inline constexpr int kCaptionBytes = 32;

// 0 to kCaptions - 1.
int caption_of_sample(std::uint64_t seed, std::int64_t sample);
std::string caption_text(int caption);
// Writes the image of a sample; `pixels` has 3 * size * size values.
void draw(std::uint64_t seed, std::int64_t sample, std::int64_t size, std::span<float> pixels);

}  // namespace examples
