#include "engine/talk/picture_prompt.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/images/patches.h"
#include "engine/images/processor_config.h"
#include "engine/images/read_image.h"
#include "engine/text/template/chat_template.h"
#include "models/qwen_vl/qwen_vl_config.h"
#include "models/qwen_vl/vision_grid.h"

namespace loom::talk {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPlaceholder = "<|vision_start|><|image_pad|><|vision_end|>";

std::string of_template(const fs::path& model_dir, std::size_t pictures, const std::string& question) {
  nlohmann::ordered_json content = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < pictures; ++i) content.push_back({{"type", "image"}});
  content.push_back({{"type", "text"}, {"text", question}});
  const nlohmann::ordered_json messages{{{"role", "user"}, {"content", content}}};
  return data::ChatTemplate::from_folder(model_dir).render(messages, {.add_generation_prompt = true});
}

std::string of_turns(models::QwenVlVersion version, std::size_t pictures, const std::string& question) {
  std::string text;
  if (version != models::QwenVlVersion::k3) text = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n";
  text += "<|im_start|>user\n";
  for (std::size_t i = 0; i < pictures; ++i) text += kPlaceholder;
  return text + question + "<|im_end|>\n<|im_start|>assistant\n";
}

// Each placeholder as often as its picture has features.
Tokens expanded(const Tokens& ids, std::int32_t placeholder, const std::vector<std::int64_t>& counts) {
  if (std::ranges::count(ids, placeholder) != std::ssize(counts)) {
    config_error(
        "the chat template leaves place for {} pictures, and --image names {}; check the template of the folder",
        std::ranges::count(ids, placeholder), counts.size());
  }
  Tokens all;
  std::size_t picture = 0;
  for (const std::int32_t id : ids) {
    const std::int64_t times = id == placeholder ? counts[picture++] : 1;
    all.insert(all.end(), static_cast<std::size_t>(times), id);
  }
  return all;
}

}  // namespace

PicturePrompt picture_prompt(const fs::path& model_dir, const std::vector<fs::path>& pictures,
                             const std::string& question, const Words& words) {
  if (!models::is_qwen_vl(model_dir)) {
    config_error(
        "--image is given, and {} is no Qwen-VL model; pictures are built for qwen2_vl, qwen2_5_vl and qwen3_vl",
        escaped(model_dir.string()));
  }
  const models::QwenVlConfig config = models::load_qwen_vl_config(model_dir);
  const images::PatchOptions processor = images::read_patch_options(
      model_dir, "the model is a Qwen-VL, which needs its own; copy the file of the published model");
  std::vector<float> values;
  std::vector<models::VisionGrid> grids;
  std::vector<std::int64_t> counts;
  for (const fs::path& picture : pictures) {
    const images::Patches patches = images::patches_of(images::read_image(picture), processor);
    values.insert(values.end(), patches.values.begin(), patches.values.end());
    grids.push_back({patches.grid.t, patches.grid.h, patches.grid.w});
    counts.push_back(images::tokens_of(patches.grid, processor.merge_size));
  }
  const bool has_template = data::ChatTemplate::is_in(model_dir);
  const std::string text = has_template ? of_template(model_dir, pictures.size(), question)
                                        : of_turns(config.version, pictures.size(), question);
  PicturePrompt prompt{expanded(words.ids(text, false), static_cast<std::int32_t>(config.image_token_id), counts), {}};
  const std::int64_t width = config.vision.patch_values();
  if (std::ssize(values) % width != 0) {
    config_error(
        "{}: patches of {} values do not fit the model's {} (patch_size, temporal_patch_size); use the file of "
        "the same model",
        escaped((model_dir / "preprocessor_config.json").string()),
        3 * processor.temporal_patch_size * processor.patch_size * processor.patch_size, width);
  }
  const Tensor pixel_values = Tensor::host({std::ssize(values) / width, width}, DType::kF32, "pixel_values");
  std::ranges::copy(values, pixel_values.data<float>());
  prompt.inputs = {{"pixel_values", pixel_values}, {"image_grid_thw", models::to_value(grids)}};
  return prompt;
}

}  // namespace loom::talk
