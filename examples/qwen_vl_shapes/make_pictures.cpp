// Draws pictures of coloured patterns, and writes what describes them: pictures/N.ppm, shapes.json (MLLM demo format)
// and data.json.
//   make_pictures DIR COUNT MODEL_DIR
#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/core/rng.h"
#include "engine/io/atomic_file.h"

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSide = 56;  // pixels
constexpr std::int64_t kStripe = 7;
constexpr double kNoise = 40;  // of 255
constexpr std::uint64_t kSeed = 1;

struct Colour {
  const char* name;
  std::array<double, 3> rgb;
};
constexpr std::array<Colour, 4> kColours{
    {{"red", {220, 40, 40}}, {"green", {40, 200, 60}}, {"blue", {50, 70, 230}}, {"yellow", {230, 210, 40}}}};
constexpr std::array<const char*, 4> kPatterns{"upright stripes", "level stripes", "squares", "plain ground"};

// What the picture shows: a function of the sample alone.
std::size_t subject(std::int64_t sample) {
  const double draw = loom::uniform_at(loom::stream_key(kSeed, "subject"), static_cast<std::uint64_t>(sample));
  return static_cast<std::size_t>(16 * draw);
}

bool is_coloured(std::size_t pattern, std::int64_t row, std::int64_t column) {
  const bool upright = column / kStripe % 2 == 0, level = row / kStripe % 2 == 0;
  return pattern == 0 ? upright : pattern == 1 ? level : pattern == 2 ? upright == level : true;
}

// As a PPM file.
std::string picture(std::int64_t sample) {
  const std::size_t what = subject(sample);
  const std::uint64_t key = loom::stream_key(kSeed, "noise");
  std::string text = fmt::format("P6\n{} {}\n255\n", kSide, kSide);
  for (std::int64_t i = 0; i < 3 * kSide * kSide; ++i) {
    const bool coloured = is_coloured(what / 4, i / 3 / kSide, i / 3 % kSide);
    const double value = coloured ? kColours[what % 4].rgb[static_cast<std::size_t>(i % 3)] : 128;
    const auto at = static_cast<std::uint64_t>(sample * 3 * kSide * kSide + i);
    text += static_cast<char>(
        static_cast<unsigned char>(std::clamp(value + kNoise * (loom::uniform_at(key, at) - 0.5), 0.0, 255.0)));
  }
  return text;
}

std::string answer(std::int64_t sample) {
  const std::size_t what = subject(sample);
  return fmt::format("{} {}", kColours[what % 4].name, kPatterns[what / 4]);
}

nlohmann::ordered_json data_json(const fs::path& folder, const fs::path& model) {
  return {
      {"dataset_param",
       {{"dataset_type", "huggingface"},
        {"basic_parameters",
         {{"template", "qwen2vl"}, {"dataset_dir", folder.string()}, {"dataset", "shapes.json"}, {"cutoff_len", 256}}},
        {"preprocess_parameters",
         {{"model_name_or_path", model.string()}, {"image_max_pixels", 12544}, {"image_min_pixels", 0}}},
        {"attr",
         {{"images", "images"},
          {"messages", "messages"},
          {"role_tag", "role"},
          {"content_tag", "content"},
          {"user_tag", "user"},
          {"assistant_tag", "assistant"}}}}},
      {"dataloader_param",
       {{"dataloader_mode", "sampler"},
        {"sampler_type", "BaseRandomBatchSampler"},
        {"shuffle", true},
        {"drop_last", true},
        {"collate_param", {{"model_name", "qwen2vl"}, {"ignore_pad_token_for_loss", true}}}}}};
}

void write(const fs::path& folder, std::int64_t count, const fs::path& model) {
  fs::create_directories(folder / "pictures");
  auto samples = nlohmann::ordered_json::array();
  for (std::int64_t i = 0; i < count; ++i) {
    const std::string name = fmt::format("pictures/{}.ppm", i);
    loom::io::write_text(folder / name, picture(i));
    samples.push_back(
        {{"images", {name}},
         {"messages",
          {{{"role", "user"}, {"content", "<image>What is it?"}}, {{"role", "assistant"}, {"content", answer(i)}}}}});
  }
  loom::io::write_text(folder / "shapes.json", samples.dump(1) + "\n");
  loom::io::write_text(folder / "data.json", data_json(folder, model).dump(2) + "\n");
}

}  // namespace

int main(int argc, char** argv) {
  std::int64_t count = 0;
  const std::string_view number = argc == 4 ? argv[2] : "";
  if (argc != 4 || std::from_chars(number.data(), number.data() + number.size(), count).ec != std::errc() ||
      count < 1) {
    fmt::print(stderr, "usage: make_pictures DIR COUNT MODEL_DIR\n");
    return 2;
  }
  try {
    write(argv[1], count, argv[3]);
    fmt::print("{} pictures in {}; the first is \"{}\"\n", count, argv[1], answer(0));
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
