// The names of Qwen2-VL's and Qwen2.5-VL's weights in published folders, which are those of transformers before 4.52:
// visual.* for model.visual.*, model.* for model.language_model.*.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace loom::models {

// Whether models of this model_type are published under them.
bool has_published_qwen_vl_names(std::string_view model_type);
// Whether these are such names: one begins with "visual.".
bool are_published_qwen_vl_names(const std::vector<std::string>& names);

// A path of the model, and back. Other names are unchanged.
std::string published_qwen_vl_name(std::string_view path);
std::string qwen_vl_path(std::string_view published);

}  // namespace loom::models
