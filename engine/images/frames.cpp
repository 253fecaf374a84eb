#include "engine/images/frames.h"

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"

namespace loom::images {
namespace {

constexpr std::int64_t kMostFrames = 1'000'000;

}  // namespace

std::vector<std::int64_t> evenly_spaced(std::int64_t total, std::int64_t count) {
  require(total >= 1 && count >= 1, "{} of {} frames", count, total);
  std::vector<std::int64_t> indices(static_cast<std::size_t>(count));
  if (count == 1) return indices;
  const double step = static_cast<double>(total - 1) / static_cast<double>(count - 1);
  for (std::int64_t i = 0; i < count; ++i) {
    indices[static_cast<std::size_t>(i)] = static_cast<std::int64_t>(static_cast<double>(i) * step);
  }
  indices.back() = total - 1;
  return indices;
}

std::vector<std::int64_t> frame_indices(std::int64_t total, double duration_s, const FrameOptions& options) {
  if (!(options.fps > 0) || options.max_frames < 1 || options.max_frames > kMostFrames) {
    config_error("videos: video_fps is {} and video_maxlen {}; use a video_fps above 0 and a video_maxlen of 1 to {}",
                 options.fps, options.max_frames, kMostFrames);
  }
  if (total < 0 || !std::isfinite(duration_s) || duration_s < 0) {
    config_error("a video of {} frames and {} seconds; both must be 0 (unknown) or more", total, duration_s);
  }
  if (total == 0) return evenly_spaced(options.max_frames, options.max_frames);
  const double most = static_cast<double>(std::min(total, options.max_frames));
  const double wished = std::floor(std::min(duration_s * options.fps, most));
  return evenly_spaced(total, std::max<std::int64_t>(1, static_cast<std::int64_t>(wished)));
}

double sample_fps(std::int64_t count, double duration_s, const FrameOptions& options) {
  return duration_s > 0 ? static_cast<double>(count) / duration_s : options.fps;
}

}  // namespace loom::images
