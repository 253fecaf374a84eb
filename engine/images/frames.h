// The frames of a video that a model sees.
//
// Units    seconds; frames count from 0.
#pragma once

#include <cstdint>
#include <vector>

namespace loom::images {

struct FrameOptions {
  double fps = 2;                 // frames a second that are wished
  std::int64_t max_frames = 128;  // video_maxlen
};

// `count` frames of `total`, the first and the last included, the others at equal distances, rounded down.
// InvariantError unless both are at least 1.
std::vector<std::int64_t> evenly_spaced(std::int64_t total, std::int64_t count);

// Of a video of `total` frames and `duration_s` seconds: at most max_frames, about `fps` of each second, at least one.
// total 0 is a video of unknown length: frames 0 to max_frames - 1. ConfigError for values that are not positive.
std::vector<std::int64_t> frame_indices(std::int64_t total, double duration_s, const FrameOptions& options);

// Frames a second of a choice of `count` frames: count / duration_s; the wished fps where the duration is 0 (unknown).
double sample_fps(std::int64_t count, double duration_s, const FrameOptions& options);

}  // namespace loom::images
