// Patches: a picture as the rows that the vision towers of Qwen2-VL, Qwen2.5-VL and Qwen3-VL read.
//
// Letters    t, h, w: the grid of a picture, in patches (t: groups of temporal_patch_size frames, 1 for a picture).
//            m: merge_size. f = m * patch_size: both sides of a resized picture are multiples of it.
// Order      rows of `values` are patches in merge blocks: (t, h / m, w / m, m, m). A row is (channel, time, y, x). A
//            picture is its own second frame: the times of a row are equal.
// Values     (byte / 255 - mean) / std in fp32 (normalise.h).
// Exactness  resizing is Pillow's (resize.h): within 1e-5 of transformers' processors with Pillow. Their torchvision
//            ("fast") processors round otherwise, by one or two steps of a byte, more at hard edges.
// Threads    any number at once.
// Errors     ConfigError for a picture that the options do not allow, with its size, and for options that make no
//            patches.
// Source     transformers 5.23, Qwen2VLImageProcessor.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/images/image.h"
#include "engine/images/normalise.h"
#include "engine/images/resize.h"

namespace loom::images {

struct Grid {
  std::int64_t t = 0;
  std::int64_t h = 0;
  std::int64_t w = 0;

  bool operator==(const Grid&) const = default;
};

struct PatchOptions {
  std::int64_t patch_size = 14;  // pixels
  std::int64_t merge_size = 2;   // patches
  std::int64_t temporal_patch_size = 2;
  std::int64_t min_pixels = 3136;     // of the resized picture: 56 * 56
  std::int64_t max_pixels = 1003520;  // 28 * 28 * 1280
  Channels mean = kClipMean;
  Channels std = kClipStd;
  Filter filter = Filter::kBicubic;
};

// The size that a picture is resized to: both sides the nearest multiples of f (a half goes to the even one); or, where
// the area is then outside [min_pixels, max_pixels], scaled to fit and rounded down, at least f, or up.
// ConfigError where the longer side is more than 200 times the shorter, or a side becomes 0 (with a min_pixels near 0).
ImageSize smart_resize(ImageSize size, const PatchOptions& options);

// Of a picture of the size `original`, with t = 1.
Grid grid_of(ImageSize original, const PatchOptions& options);

// t * h * w / merge_size^2: the tokens of a picture or video in a text.
std::int64_t tokens_of(const Grid& grid, std::int64_t merge_size);

struct Patches {
  Grid grid;
  std::vector<float> values;  // [t * h * w, 3 * temporal_patch_size * patch_size^2]
};

Patches patches_of(const Image& image, const PatchOptions& options);

// Frames of a video, all resized to smart_resize of the first. The last frame is repeated until temporal_patch_size
// divides their number. ConfigError without frames.
Patches patches_of_video(std::span<const Image> frames, const PatchOptions& options);

}  // namespace loom::images
