#include "engine/talk/picture_model.h"

#include <algorithm>
#include <optional>

#include "engine/core/error.h"
#include "engine/text/template/chat_template.h"

namespace loom::talk {

using Json = nlohmann::ordered_json;

PictureModel::PictureModel(std::filesystem::path folder, const Words& words, std::int64_t placeholder)
    : folder_(std::move(folder)), words_(words), placeholder_(static_cast<std::int32_t>(placeholder)) {}

Json PictureModel::content(std::size_t pictures, const std::string& text) const {
  Json content = Json::array();
  for (std::size_t i = 0; i < pictures; ++i) content.push_back({{"type", "image"}});
  content.push_back({{"type", "text"}, {"text", text}});
  return content;
}

std::optional<std::string> PictureModel::by_template(std::size_t pictures, const std::string& question) const {
  if (!data::ChatTemplate::is_in(folder_)) return std::nullopt;
  const Json messages{{{"role", "user"}, {"content", content(pictures, question)}}};
  return data::ChatTemplate::from_folder(folder_).render(messages, {.add_generation_prompt = true});
}

Tokens PictureModel::ids(const std::string& text, std::span<const Picture> pictures) const {
  const Tokens ids = words_.ids(with_marks(text), false);
  const auto places = std::ranges::count(ids, placeholder_);
  if (places != std::ssize(pictures)) {
    config_error("the chat template leaves place for {} pictures, and there are {}; check the template of the folder",
                 places, pictures.size());
  }
  Tokens all;
  auto picture = pictures.begin();
  for (const std::int32_t id : ids) {
    const std::int64_t times = id == placeholder_ ? (picture++)->tokens : 1;
    all.insert(all.end(), static_cast<std::size_t>(times), id);
  }
  return all;
}

nn::ValueDict PictureModel::inputs(std::span<const Picture> pictures) const {
  if (pictures.empty()) return {};
  std::vector<std::int64_t> shape = pictures.front().shape;
  shape.front() = 0;
  for (const Picture& picture : pictures) shape.front() += picture.shape.front();
  const Tensor pixel_values = Tensor::host(Shape(shape), DType::kF32, "pixel_values");
  float* to = pixel_values.data<float>();
  for (const Picture& picture : pictures) to = std::ranges::copy(picture.values, to).out;
  return {{"pixel_values", pixel_values}};
}

}  // namespace loom::talk
