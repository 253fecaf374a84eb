#include "engine/multimodal/video_frames.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"

namespace loom::multimodal {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 8> kPictures{".jpg", ".jpeg", ".png", ".ppm", ".pgm", ".pnm", ".bmp", ".webp"};

bool is_picture(const fs::path& file) {
  return std::ranges::find(kPictures, lower_case(file.extension().string())) != kPictures.end();
}

// floor(duration * fps), at least 1.
std::int64_t frames_in(double duration_s, const VideoOptions& options) {
  const double frames = std::floor(duration_s * options.fps);
  if (!(frames >= 1)) return 1;
  return frames >= static_cast<double>(options.maxlen) ? options.maxlen : static_cast<std::int64_t>(frames);
}

}  // namespace

std::vector<std::int64_t> chosen_frames(std::int64_t total, std::optional<double> duration_s,
                                        const VideoOptions& options) {
  require(total >= 1 && options.maxlen >= 1 && options.fps > 0, "{} frames, at most {}, {} a second", total,
          options.maxlen, options.fps);
  std::int64_t count = std::min(total, options.maxlen);
  if (duration_s) count = std::min(count, frames_in(*duration_s, options));
  std::vector<std::int64_t> places;
  // As numpy's linspace: the last place is exact, the others are products with the step.
  const double step = count > 1 ? static_cast<double>(total - 1) / static_cast<double>(count - 1) : 0.0;
  for (std::int64_t i = 0; i < count; ++i) {
    const bool last = i > 0 && i == count - 1;
    places.push_back(last ? total - 1 : static_cast<std::int64_t>(static_cast<double>(i) * step));
  }
  return places;
}

std::vector<fs::path> frames_of_folder(const fs::path& folder) {
  std::error_code error;
  if (fs::is_regular_file(folder, error)) {
    config_error("{} is a file; a decoder of videos is not built: give a folder with its frames as pictures",
                 escaped(folder.string()));
  }
  fs::directory_iterator entry(folder, error);
  if (error) config_error("{}: no folder of frames ({})", escaped(folder.string()), error.message());
  std::vector<fs::path> frames;
  for (; entry != fs::directory_iterator() && !error; entry.increment(error)) {
    if (is_picture(entry->path())) frames.push_back(entry->path());
    if (std::cmp_greater(frames.size(), kMostFrames)) {
      config_error("{} has more than {} frames; split the video", escaped(folder.string()), kMostFrames);
    }
  }
  if (error) config_error("{}: cannot be read ({})", escaped(folder.string()), error.message());
  if (frames.empty()) {
    config_error("{} has no picture (.jpg, .jpeg, .png, .ppm, ...); a video is a folder of frames",
                 escaped(folder.string()));
  }
  std::ranges::sort(frames);
  return frames;
}

}  // namespace loom::multimodal
