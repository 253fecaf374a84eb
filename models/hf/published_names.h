// The names of weights in published folders, where they are not the paths of the model.
//
// Qwen-VL            Qwen2-VL and Qwen2.5-VL (models/qwen_vl/stored_names.h).
// InternVLChatModel  InternVL2, 2.5 and 3 of OpenGVLab; a tensor may hold several parameters (StoredPart).
// Mixtral            experts and routers (models/decoder/expert_weights.h); its names are told from others one by one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/internvl/stored_names.h"

namespace loom::models {

enum class PublishedNames : std::uint8_t { kPaths, kMixtral, kQwenVl, kInternVlChat };

// Those of models of this model_type, and those that a folder's weights have. kMixtral is never seen by names.
PublishedNames published_names_of_type(std::string_view model_type);
PublishedNames published_names_in(const std::vector<std::string>& names);

// Where a path of the model is stored.
StoredPart published_part(PublishedNames names, std::string_view path);
// The paths of a tensor's parts, in their order. Mixtral's names become paths under kPaths too.
std::vector<std::string> paths_of_published(PublishedNames names, std::string_view name);

}  // namespace loom::models
