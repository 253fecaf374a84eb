#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/talk/picture_model.h"
#include "models/internvl/internvl_config.h"
#include "models/qwen_vl/qwen_vl_config.h"

namespace loom::talk {

std::unique_ptr<PictureModel> picture_model(const std::filesystem::path& folder, const Words& words) {
  if (models::is_qwen_vl(folder)) return qwen_vl_pictures(folder, words);
  if (models::is_internvl(folder)) return internvl_pictures(folder, words);
  config_error(
      "{} is no model that reads pictures; they are built for qwen2_vl, qwen2_5_vl, qwen3_vl, internvl and "
      "internvl_chat",
      escaped(folder.string()));
}

}  // namespace loom::talk
