// image_bytes JOBS OUT: what images_agree.py compares with Pillow.
//
// JOBS      a line a job: FILTER WIDTH HEIGHT PATH. FILTER is nearest, bilinear or bicubic, or `none` for the picture
//           as it is, whatever the size.
// OUT       for each job two int64, width and height, then the RGB bytes; 0 and 0 for a file that is refused.
// Prints    the error of each refused file.
//
// image_bytes --speed PATH...: reads all files five times; prints the least processor seconds of a pass.
// image_bytes --speed-resize WIDTH HEIGHT PATH...: the same for bicubic resizing of the decoded pictures.
#include <algorithm>
#include <ctime>
#include <fmt/format.h>
#include <fstream>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/images/read_image.h"
#include "engine/images/resize.h"

namespace loom::images {
namespace {

constexpr int kPasses = 5;

struct Job {
  std::string filter;
  std::int64_t width = 0;
  std::int64_t height = 0;
  std::string path;
};

Image picture_of(const Job& job) {
  const Image image = read_image(job.path);
  if (job.filter == "none") return image;
  const Filter filter = job.filter == "nearest"    ? Filter::kNearest
                        : job.filter == "bilinear" ? Filter::kBilinear
                                                   : Filter::kBicubic;
  return resize(image, job.width, job.height, filter);
}

void write(std::ofstream& out, const Image& image) {
  const std::int64_t size[] = {image.width, image.height};
  out.write(reinterpret_cast<const char*>(size), sizeof size);
  out.write(reinterpret_cast<const char*>(image.rgb.data()), static_cast<std::streamsize>(image.rgb.size()));
}

void run(const std::string& jobs, const std::string& out_path) {
  std::ifstream lines(jobs);
  std::ofstream out(out_path, std::ios::binary);
  for (Job job; lines >> job.filter >> job.width >> job.height && std::getline(lines >> std::ws, job.path);) {
    Image image;
    try {
      image = picture_of(job);
    } catch (const ConfigError& error) {
      fmt::print("{}\n", error.what());
    }
    write(out, image);
  }
  out.flush();
  if (!out) throw Error(fmt::format("{}: cannot write", out_path));
}

template <class Work>
double least_seconds(const Work& work) {
  double least = 1e300;
  for (int pass = 0; pass < kPasses; ++pass) {
    const std::clock_t begin = std::clock();
    work();
    least = std::min(least, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
  return least;
}

void print_speed(const std::vector<std::string>& paths) {
  std::size_t bytes = 0;
  const double seconds = least_seconds([&] {
    for (const std::string& path : paths) bytes += read_image(path).rgb.size();
  });
  fmt::print("{} {}\n", seconds, bytes / kPasses);
}

void print_resize_speed(std::int64_t width, std::int64_t height, const std::vector<std::string>& paths) {
  std::vector<Image> images;
  for (const std::string& path : paths) images.push_back(read_image(path));
  std::size_t bytes = 0;
  const double seconds = least_seconds([&] {
    for (const Image& image : images) bytes += resize(image, width, height, Filter::kBicubic).rgb.size();
  });
  fmt::print("{} {}\n", seconds, bytes / kPasses);
}

void run(const std::vector<std::string>& words) {
  if (words.size() > 1 && words[0] == "--speed") {
    print_speed({words.begin() + 1, words.end()});
  } else if (words.size() > 3 && words[0] == "--speed-resize") {
    print_resize_speed(std::stoll(words[1]), std::stoll(words[2]), {words.begin() + 3, words.end()});
  } else {
    run(words.at(0), words.at(1));
  }
}

}  // namespace
}  // namespace loom::images

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: image_bytes JOBS OUT, image_bytes --speed PATH...\n");
    return 2;
  }
  try {
    loom::images::run(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
