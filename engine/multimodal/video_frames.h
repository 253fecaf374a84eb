// Frames of a video: which of them a sample has, and the files of a folder of frames.
//
// Videos    are folders of pictures, in the order of their names, or lists of pictures; files such as MP4 are not read.
// Choice    of `total` frames n = min(total, maxlen, max(1, floor(duration fps))), at int(linspace(0, total - 1, n)).
//           The duration of a folder is not known: n = min(total, maxlen).
// Threads   pure functions, and one that reads a folder.
// Errors    ConfigError naming the folder: no such folder, a file that is none, no frame, more than kMostFrames.
// Source    mindspeed_mm/data/data_utils/func_utils/mm_plugin.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace loom::multimodal {

inline constexpr std::int64_t kMostFrames = 1'000'000;

struct VideoOptions {
  double fps = 2.0;
  std::int64_t maxlen = 128;
};

// The places of the chosen frames. Before: total >= 1. `duration_s`: none: not known.
std::vector<std::int64_t> chosen_frames(std::int64_t total, std::optional<double> duration_s,
                                        const VideoOptions& options);

// Seconds between two rows of patches in time, each of two frames.
inline double second_per_grid(const VideoOptions& options) { return 2.0 / options.fps; }

// The pictures of a folder of frames.
std::vector<std::filesystem::path> frames_of_folder(const std::filesystem::path& folder);

}  // namespace loom::multimodal
