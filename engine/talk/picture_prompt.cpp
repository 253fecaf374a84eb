#include "engine/talk/picture_prompt.h"

#include "engine/talk/picture_model.h"

namespace loom::talk {

PicturePrompt picture_prompt(const std::filesystem::path& model_dir, const std::vector<std::filesystem::path>& pictures,
                             const std::string& question, const Words& words) {
  const std::unique_ptr<PictureModel> model = picture_model(model_dir, words);
  std::vector<Picture> read;
  for (const std::filesystem::path& picture : pictures) read.push_back(model->read(picture));
  return {model->ids(model->prompt(read.size(), question), read), model->inputs(read)};
}

}  // namespace loom::talk
