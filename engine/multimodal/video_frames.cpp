#include "engine/multimodal/video_frames.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"
#include "engine/images/frames.h"

namespace loom::multimodal {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 8> kPictures{".jpg", ".jpeg", ".png", ".ppm", ".pgm", ".pnm", ".bmp", ".webp"};

bool is_picture(const fs::path& file) {
  return std::ranges::find(kPictures, lower_case(file.extension().string())) != kPictures.end();
}

}  // namespace

std::vector<std::int64_t> chosen_frames(std::int64_t total, std::optional<double> duration_s,
                                        const VideoOptions& options) {
  require(total >= 1 && options.maxlen >= 1 && options.fps > 0, "{} frames, at most {}, {} a second", total,
          options.maxlen, options.fps);
  if (!duration_s) return images::evenly_spaced(total, std::min(total, options.maxlen));
  return images::frame_indices(total, *duration_s, {.fps = options.fps, .max_frames = options.maxlen});
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
