// Draws pictures of squares, and writes what describes them: pictures/N.ppm, shapes.json (MLLM demo format) and data.json.
//   make_pictures DIR COUNT MODEL_DIR
#include <charconv>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/core/error.h"
#include "engine/io/atomic_file.h"
#include "examples/pretrain_vlm/captioned_shapes.h"

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSide = 56;
constexpr std::uint64_t kSeed = 1;

// The picture as a PPM file.
std::string ppm(std::int64_t sample) {
  std::vector<float> pixels(3 * kSide * kSide);
  examples::draw(kSeed, sample, kSide, pixels);
  std::string text = fmt::format("P6\n{} {}\n255\n", kSide, kSide);
  for (std::int64_t i = 0; i < kSide * kSide; ++i) {
    for (std::int64_t channel = 0; channel < 3; ++channel) {
      const float value = pixels[static_cast<std::size_t>(channel * kSide * kSide + i)];
      text += static_cast<char>(static_cast<unsigned char>(std::clamp(value, 0.0F, 1.0F) * 255 + 0.5F));
    }
  }
  return text;
}

std::string answer(std::int64_t sample) {
  std::string text = examples::caption_text(examples::caption_of_sample(kSeed, sample));
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
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
    loom::io::write_text(folder / name, ppm(i));
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
