// images_parity DIR: pictures as patches, beside the values of transformers' processor with Pillow. A case is a folder,
// DIR or one below, with case.json and pixel_values.safetensors.
//
// Agrees   grids are equal; at most 2 % of the values of a resized picture differ by one step of a byte (0.0152), the
//          others by 1e-5; values of a picture that keeps its size differ by 1e-5.
#include <cmath>
#include <cstring>
#include <fmt/format.h>

#include "engine/formats/safetensors/safetensors.h"
#include "engine/images/patches.h"
#include "engine/images/read_image.h"
#include "tests/support/case_json.h"
#include "tests/support/parity_report.h"

namespace loom::test::images_parity {
namespace {

using images::Grid;
using images::Image;
using images::PatchOptions;

constexpr const char* kTolerance =
    "one step of a byte after resizing: 0.0152 on at most 2 % of the values, 1e-5 on the rest; the picture that needs no "
    "resizing 1e-5 everywhere";
constexpr double kStep = 0.0152;
constexpr double kNoise = 1e-5;
constexpr double kMostSteps = 0.02;

images::Channels channels_of(const CaseJson& list) { return {list.at(0), list.at(1), list.at(2)}; }

PatchOptions options_of(const CaseJson& json) {
  return {.patch_size = json.at("patch_size"),
          .merge_size = json.at("merge_size"),
          .temporal_patch_size = json.at("temporal_patch_size"),
          .min_pixels = json.at("min_pixels"),
          .max_pixels = json.at("max_pixels"),
          .mean = channels_of(json.at("image_mean")),
          .std = channels_of(json.at("image_std"))};
}

bool is_grey(const Image& image) {
  for (std::size_t i = 0; i < image.rgb.size(); i += 3) {
    if (image.rgb[i] != image.rgb[i + 1] || image.rgb[i] != image.rgb[i + 2]) return false;
  }
  return true;
}

struct Difference {
  double largest = 0;
  std::size_t above_noise = 0;
  std::size_t values = 0;

  bool agrees(bool is_resized) const {
    if (!is_resized) return largest <= kNoise;
    return largest <= kStep && static_cast<double>(above_noise) <= kMostSteps * static_cast<double>(values);
  }
};

Difference difference(std::span<const float> ours, std::span<const std::byte> theirs) {
  Difference result{.values = ours.size()};
  for (std::size_t i = 0; i < ours.size(); ++i) {
    float value = 0;
    std::memcpy(&value, theirs.data() + i * sizeof value, sizeof value);
    const double distance = std::fabs(static_cast<double>(ours[i]) - static_cast<double>(value));
    result.largest = std::max(result.largest, std::isnan(distance) ? INFINITY : distance);
    result.above_noise += distance <= kNoise ? 0 : 1;
  }
  return result;
}

// What differs before any value; empty when nothing does.
std::string wrong_shape(const CaseJson& json, const Image& image, const Grid& grid, const PatchOptions& options,
                        const io::StoredTensor& theirs) {
  const CaseJson size = json.at("width_height");
  const CaseJson wanted = json.at("grid_thw");
  if (image.size() != images::ImageSize{size.at(0), size.at(1)}) {
    return fmt::format("it has {} x {} pixels", image.width, image.height);
  }
  if (json.at("mode") == std::string("L") && !is_grey(image)) return "it is not grey";
  if (grid != Grid{wanted.at(0), wanted.at(1), wanted.at(2)} || grid != images::grid_of(image.size(), options)) {
    return fmt::format("its grid is {} x {} x {}", grid.t, grid.h, grid.w);
  }
  const std::int64_t rows = grid.t * grid.h * grid.w;
  const std::int64_t columns = 3 * options.temporal_patch_size * options.patch_size * options.patch_size;
  if (json.at("patches") != rows || theirs.dtype != DType::kF32 || theirs.shape != Shape{rows, columns}) {
    return fmt::format("it has {} patches of {} values", rows, columns);
  }
  return "";
}

void compare(const std::filesystem::path& folder, const CaseJson& json, const PatchOptions& options,
             const io::StoredTensor& theirs, ParityReport& report) {
  const std::string name = json.at("file");
  const Image image = images::read_image(folder / name);
  if (images::read_image_size(folder / name) != image.size()) {
    report.failed(name, "its size is another one without its pixels");
    return;
  }
  const images::Patches patches = images::patches_of(image, options);
  if (const std::string wrong = wrong_shape(json, image, patches.grid, options, theirs); !wrong.empty()) {
    report.failed(name, wrong);
    return;
  }
  const Difference found = difference(patches.values, theirs.bytes);
  const bool is_resized = images::smart_resize(image.size(), options) != image.size();
  const std::string detail = fmt::format("{} values{}, largest difference {:.2g}, {} above {}", found.values,
                                         is_resized ? ", resized" : "", found.largest, found.above_noise, kNoise);
  found.agrees(is_resized) ? report.passed(name, detail) : report.failed(name, detail);
}

void run_case(const std::filesystem::path& folder, ParityReport& report) {
  const CaseJson json = read_case(folder / "case.json");
  if (json.at("tolerance").at("grid") != std::string("equal") ||
      json.at("tolerance").at("pixel_values") != std::string(kTolerance)) {
    throw std::runtime_error("case.json: the tolerance is not the one that this program knows");
  }
  const PatchOptions options = options_of(json.at("options"));
  const io::SafetensorsFile expected(folder / "pixel_values.safetensors");
  std::size_t index = 0;
  for (const CaseJson& picture : json.at("images").elements()) {
    compare(folder, picture, options, expected.at(fmt::format("pixel_values.{}", index++)), report);
  }
  json.check_all_read({"pil_against_torchvision"});
}

int run(const std::filesystem::path& folder) {
  ParityReport report;
  for (const auto& found : case_folders_below(folder, "pixel_values.safetensors")) run_case(found, report);
  return report.finish();
}

}  // namespace
}  // namespace loom::test::images_parity

int main_of_images_parity(int argc, char** argv) {
  return loom::test::parity_main(argc, argv, "images_parity", loom::test::images_parity::run);
}
