#include "engine/images/frames.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <system_error>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::images {
namespace {

constexpr std::int64_t kMostFrames = 1'000'000;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The digits that `text` begins with, without leading zeros.
std::string_view take_number(std::string_view& text) {
  const auto end = std::find_if_not(text.begin(), text.end(), is_digit);
  std::string_view digits = text.substr(0, static_cast<std::size_t>(end - text.begin()));
  text.remove_prefix(digits.size());
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
  return digits;
}

// Runs of digits compare as numbers, other bytes as bytes.
bool is_before(std::string_view a, std::string_view b) {
  const std::string_view whole_a = a;
  const std::string_view whole_b = b;
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      const std::string_view x = take_number(a);
      const std::string_view y = take_number(b);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
    } else {
      if (a.front() != b.front()) return static_cast<unsigned char>(a.front()) < static_cast<unsigned char>(b.front());
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  if (a.empty() != b.empty()) return a.empty();
  return whole_a < whole_b;  // 01 and 1
}

void check_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  const auto status = std::filesystem::status(folder, ignored);
  if (std::filesystem::is_directory(status)) return;
  const std::string name = escaped(folder.string());
  if (status.type() == std::filesystem::file_type::not_found) {
    config_error("{}: no such folder; give the folder of a video's frames", name);
  }
  config_error("{}: not a folder; a video is a folder of pictures here, extract its frames", name);
}

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

std::vector<std::filesystem::path> frame_files(const std::filesystem::path& folder) {
  check_folder(folder);
  std::vector<std::string> names;
  std::error_code problem;
  for (std::filesystem::directory_iterator entry(folder, problem), end; !problem && entry != end;
       entry.increment(problem)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with('.')) continue;
    std::error_code ignored;
    if (!entry->is_regular_file(ignored)) {
      config_error("{}: not a regular file; a folder of frames holds pictures alone", escaped(entry->path().string()));
    }
    names.push_back(name);
  }
  if (problem) config_error("{}: cannot be read: {}", escaped(folder.string()), problem.message());
  if (names.empty()) config_error("{}: no frames; give a folder with one picture a frame", escaped(folder.string()));
  std::sort(names.begin(), names.end(), is_before);
  std::vector<std::filesystem::path> files;
  for (const std::string& name : names) files.push_back(folder / name);
  return files;
}

}  // namespace loom::images
