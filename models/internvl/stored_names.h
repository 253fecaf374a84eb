// The names of weights in the folders of OpenGVLab's InternVLChatModel (InternVL2, 2.5 and 3).
//
// Names  vision_model.*, mlp1.{0,1,3}.* and language_model.* for model.vision_tower.*, model.multi_modal_projector.*
//        and model.language_model.*, lm_head.*; in a layer of the tower attn, ls1, ls2, norm1, norm2.
// Fused  attn.qkv has the rows of q_proj, then those of k_proj, then those of v_proj.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace loom::models {

// Where a parameter is stored: part `part` of `parts` equal ones of a tensor's rows.
struct StoredPart {
  std::string name;
  std::int64_t part = 0;
  std::int64_t parts = 1;
};

// Whether models of this model_type have these names.
bool has_internvl_chat_names(std::string_view model_type);
// Whether these are such names: one begins with "mlp1.".
bool are_internvl_chat_names(const std::vector<std::string>& names);

// Of a path of the model, and back: the paths of a tensor's parts, in their order. Other names are unchanged.
StoredPart internvl_chat_part(std::string_view path);
std::vector<std::string> internvl_chat_paths(std::string_view name);

}  // namespace loom::models
