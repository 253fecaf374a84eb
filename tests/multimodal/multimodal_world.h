// A tokenizer of bytes with the tokens of pictures, and pictures that are files with two numbers.
#pragma once

#include <fmt/format.h>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/error.h"
#include "engine/multimodal/conversation_encoder.h"
#include "engine/multimodal/picture_reader.h"
#include "tests/support/files.h"
#include "tests/support/tokenizer_files.h"

namespace loom::test {

// Text of ids with one character for each picture token: [ starts, # is an image's pad, % a video's, ] ends, ~ ends a
// turn, ^ begins one, | is padding; _ stands for no label.
inline std::string shown(const data::Tokenizer& tokenizer, const std::vector<data::TokenId>& ids) {
  constexpr std::string_view kSigns = "^~|[]#%[]#";
  std::string text;
  std::vector<data::TokenId> bytes;
  const auto add_bytes = [&] { text += tokenizer.decode(std::exchange(bytes, {})); };
  for (const data::TokenId id : ids) {
    if (0 <= id && id < 260) {
      bytes.push_back(id);
    } else {
      add_bytes();
      text += id < 0 ? '_' : kSigns.at(static_cast<std::size_t>(id - 260));
    }
  }
  add_bytes();
  return text;
}

// A picture is a file "HEIGHT WIDTH" in patches; its values are the height, for each patch.
class TextPictures final : public multimodal::PictureReader {
 public:
  multimodal::Grid size_of(const std::filesystem::path& picture, std::int64_t) const override {
    std::ifstream file(picture);
    multimodal::Grid grid{.t = 1};
    if (!(file >> grid.h >> grid.w)) config_error("{}: no picture", picture.string());
    return grid;
  }
  multimodal::Patches read(const std::filesystem::path& picture, std::int64_t pictures) const override {
    return filled(size_of(picture, pictures));
  }
  multimodal::Grid size_of_video(std::span<const std::filesystem::path> frames) const override {
    multimodal::Grid grid = size_of(frames.front(), 1);
    grid.t = (std::ssize(frames) + 1) / 2;
    return grid;
  }
  multimodal::Patches read_video(std::span<const std::filesystem::path> frames) const override {
    return filled(size_of_video(frames));
  }
  multimodal::Patches white(std::int64_t width, std::int64_t height) const override {
    return {{1, height / 16, width / 16}, std::vector<float>(static_cast<std::size_t>(height * width / 256), 255)};
  }
  std::vector<std::int64_t> row_shape() const override { return {1}; }
  std::int64_t merge_size() const override { return 2; }

 private:
  static multimodal::Patches filled(const multimodal::Grid& grid) {
    return {grid, std::vector<float>(static_cast<std::size_t>(grid.t * grid.h * grid.w), static_cast<float>(grid.h))};
  }
};

inline multimodal::Conversation conversation(const std::vector<std::string>& contents, std::size_t images = 0) {
  multimodal::Conversation sample;
  for (std::size_t i = 0; i < contents.size(); ++i) {
    sample.messages.push_back({i % 2 == 0 ? multimodal::Role::kUser : multimodal::Role::kAssistant, contents[i]});
  }
  sample.images.resize(images);
  sample.file = std::make_shared<const std::string>("x.json");
  sample.number = 7;
  return sample;
}

}  // namespace loom::test
