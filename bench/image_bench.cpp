// Pictures: how fast one core decodes PNG and JPEG files and makes patches of them.
//
// Picture   1024 x 768 pixels: smooth shapes with some noise, as files of a photo's size; JPEG of quality 90.
// Limit     memcpy of the decoded bytes.
// Check     a PNG picture comes back as it was, a JPEG picture nearly; patches are those of the resized picture.

#include <algorithm>
#include <benchmark/benchmark.h>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "bench/picture_files.h"
#include "engine/core/error.h"
#include "engine/core/rng.h"
#include "engine/images/patches.h"
#include "engine/images/read_image.h"

namespace loom::bench {
namespace {

using images::Image;

constexpr int kRuns = 7;
constexpr std::int64_t kWidth = 1024;
constexpr std::int64_t kHeight = 768;

double seconds_of(const auto& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Image photo() {
  Image image{.width = kWidth, .height = kHeight, .rgb = {}};
  for (std::int64_t i = 0; i < 3 * kWidth * kHeight; ++i) {
    const auto x = static_cast<double>(i / 3 % kWidth);
    const auto y = static_cast<double>(i / 3 / kWidth);
    const auto c = static_cast<double>(i % 3);
    const double shape = 60 * std::sin(x / (20 + 9 * c)) + 50 * std::cos(y / 17 + x / 90) + 128;
    const double noise = 3 * normal_at(7, static_cast<std::uint64_t>(i));
    image.rgb.push_back(static_cast<std::uint8_t>(std::clamp(shape + noise, 0.0, 255.0)));
  }
  return image;
}

Image decoded(const std::string& file) {
  return images::decode_image({reinterpret_cast<const std::byte*>(file.data()), file.size()}, "picture");
}

double mean_distance(const Image& a, const Image& b) {
  require(a.size() == b.size(), "{} x {} pixels for {} x {}", a.width, a.height, b.width, b.height);
  double sum = 0;
  for (std::size_t i = 0; i < a.rgb.size(); ++i) sum += std::abs(int{a.rgb[i]} - int{b.rgb[i]});
  return sum / static_cast<double>(a.rgb.size());
}

double copy_seconds(const Image& image) {
  std::vector<std::uint8_t> to(image.rgb.size());
  double best = 1e300;
  for (int run = 0; run < kRuns; ++run) {
    best = std::min(best, seconds_of([&] {
                      std::memcpy(to.data(), image.rgb.data(), to.size());
                      benchmark::DoNotOptimize(to.data());
                    }));
  }
  return best;
}

// Pictures a second, and the speed as a share of copying the bytes of `image`.
void measure(benchmark::State& state, const Image& image, const std::function<void()>& work) {
  double best = 1e300;
  for (auto _ : state) {
    const double seconds = seconds_of(work);
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
  }
  state.counters["pictures_s"] = 1 / best;
  state.counters["of_memcpy"] = copy_seconds(image) / best;
}

void decode(benchmark::State& state, const std::string& file, double most_distance) {
  const Image image = photo();
  const double distance = mean_distance(decoded(file), image);
  require(distance <= most_distance, "the decoded picture is {} steps of a byte off in the mean", distance);
  measure(state, image, [&] { benchmark::DoNotOptimize(decoded(file).rgb.data()); });
}

void resize(benchmark::State& state, std::int64_t width, std::int64_t height) {
  const Image image = photo();
  const Image columns = images::resize(image, kWidth, height, images::Filter::kBicubic);
  require(images::resize(image, width, height, images::Filter::kBicubic) ==
              images::resize(columns, width, height, images::Filter::kBicubic),
          "resizing at once is not resizing columns, then rows");
  measure(state, image,
          [&] { benchmark::DoNotOptimize(images::resize(image, width, height, images::Filter::kBicubic).rgb.data()); });
}

void patches(benchmark::State& state) {
  const Image image = photo();
  const images::ImageSize size = images::smart_resize(image.size(), {});
  const Image resized = images::resize(image, size.width, size.height, images::Filter::kBicubic);
  require(images::patches_of(image, {}).values == images::patches_of(resized, {}).values,
          "patches are not those of the resized picture");
  measure(state, image, [&] { benchmark::DoNotOptimize(images::patches_of(image, {}).values.data()); });
}

void add(const std::string& name, std::function<void(benchmark::State&)> run) {
  benchmark::RegisterBenchmark(name.c_str(), std::move(run))
      ->Iterations(kRuns)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

}  // namespace
}  // namespace loom::bench

int main(int argc, char** argv) {
  using namespace loom::bench;
  benchmark::Initialize(&argc, argv);
  const auto image = photo();
  add("decode/png", [file = png_of(image)](auto& state) { decode(state, file, 0); });
  add("decode/jpeg", [file = jpeg_of(image, false)](auto& state) { decode(state, file, 4); });
  add("decode/jpeg_progressive", [file = jpeg_of(image, true)](auto& state) { decode(state, file, 4); });
  add("resize/1000x448", [](auto& state) { resize(state, 1000, 448); });
  add("patches/qwen2_vl", patches);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
