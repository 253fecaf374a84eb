#include "models/qwen_vl/stored_names.h"

#include <algorithm>
#include <utility>

#include "models/qwen_vl/qwen_vl_config.h"

namespace loom::models {
namespace {

constexpr std::pair<std::string_view, std::string_view> kPrefixes[] = {{"model.visual.", "visual."},
                                                                       {"model.language_model.", "model."}};

}  // namespace

bool has_published_qwen_vl_names(std::string_view type) {
  return type == model_type(QwenVlVersion::k2) || type == model_type(QwenVlVersion::k2_5);
}

bool are_published_qwen_vl_names(const std::vector<std::string>& names) {
  return std::ranges::any_of(names, [](const std::string& name) { return name.starts_with("visual."); });
}

std::string published_qwen_vl_name(std::string_view path) {
  for (const auto& [ours, published] : kPrefixes) {
    if (path.starts_with(ours)) return std::string(published).append(path.substr(ours.size()));
  }
  return std::string(path);
}

std::string qwen_vl_path(std::string_view published) {
  for (const auto& [ours, theirs] : kPrefixes) {
    if (published.starts_with(theirs)) return std::string(ours).append(published.substr(theirs.size()));
  }
  return std::string(published);
}

}  // namespace loom::models
