#include "models/hf/published_names.h"

#include "models/decoder/decoder_config.h"
#include "models/decoder/expert_weights.h"
#include "models/qwen_vl/stored_names.h"

namespace loom::models {

PublishedNames published_names_of_type(std::string_view type) {
  if (type == model_type(DecoderFamily::kMixtral)) return PublishedNames::kMixtral;
  if (has_published_qwen_vl_names(type)) return PublishedNames::kQwenVl;
  return has_internvl_chat_names(type) ? PublishedNames::kInternVlChat : PublishedNames::kPaths;
}

PublishedNames published_names_in(const std::vector<std::string>& names) {
  if (are_published_qwen_vl_names(names)) return PublishedNames::kQwenVl;
  return are_internvl_chat_names(names) ? PublishedNames::kInternVlChat : PublishedNames::kPaths;
}

StoredPart published_part(PublishedNames names, std::string_view path) {
  switch (names) {
    case PublishedNames::kMixtral:
      return {mixtral_spelling(path)};
    case PublishedNames::kQwenVl:
      return {published_qwen_vl_name(path)};
    case PublishedNames::kInternVlChat:
      return internvl_chat_part(path);
    case PublishedNames::kPaths:
      break;
  }
  return {std::string(path)};
}

std::vector<std::string> paths_of_published(PublishedNames names, std::string_view name) {
  if (names == PublishedNames::kQwenVl) return {qwen_vl_path(name)};
  if (names == PublishedNames::kInternVlChat) return internvl_chat_paths(name);
  return {qwen_spelling(name)};
}

}  // namespace loom::models
