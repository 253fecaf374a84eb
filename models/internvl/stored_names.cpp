#include "models/internvl/stored_names.h"

#include <algorithm>
#include <optional>
#include <span>

namespace loom::models {
namespace {

struct Pair {
  std::string_view ours, theirs;  // beginnings
};

constexpr Pair kOutside[] = {
    {"model.language_model.", "language_model.model."},
    {"lm_head.", "language_model.lm_head."},
    {"model.multi_modal_projector.layer_norm.", "mlp1.0."},
    {"model.multi_modal_projector.linear_1.", "mlp1.1."},
    {"model.multi_modal_projector.linear_2.", "mlp1.3."},
    {"model.vision_tower.embeddings.cls_token", "vision_model.embeddings.class_embedding"},
    {"model.vision_tower.embeddings.position_embeddings", "vision_model.embeddings.position_embedding"},
    {"model.vision_tower.embeddings.patch_embeddings.projection.", "vision_model.embeddings.patch_embedding."},
};
constexpr Pair kLayers{"model.vision_tower.encoder.layer.", "vision_model.encoder.layers."};
// Behind the number of a layer.
constexpr Pair kInLayer[] = {
    {"attention.projection_layer.", "attn.proj."},
    {"attention.q_norm.", "attn.q_norm."},
    {"attention.k_norm.", "attn.k_norm."},
    {"lambda_1", "ls1"},
    {"lambda_2", "ls2"},
    {"layernorm_before.", "norm1."},
    {"layernorm_after.", "norm2."},
    {"mlp.", "mlp."},
};
constexpr std::string_view kFused = "attn.qkv.";
constexpr std::string_view kParts[] = {"attention.q_proj.", "attention.k_proj.", "attention.v_proj."};

using Side = std::string_view Pair::*;

std::optional<std::string> renamed(std::string_view name, std::span<const Pair> table, Side from, Side to) {
  for (const Pair& pair : table) {
    if (name.starts_with(pair.*from)) return std::string(pair.*to).append(name.substr((pair.*from).size()));
  }
  return std::nullopt;
}

// "PREFIX.3.attn.proj.bias" in two: "3." and "attn.proj.bias".
struct InLayer {
  std::string_view number, rest;
};
std::optional<InLayer> in_layer(std::string_view name, Side side) {
  if (!name.starts_with(kLayers.*side)) return std::nullopt;
  name.remove_prefix((kLayers.*side).size());
  const std::size_t end = name.find('.');
  if (end == std::string_view::npos) return std::nullopt;
  return InLayer{name.substr(0, end + 1), name.substr(end + 1)};
}

std::string joined(std::string_view prefix, std::string_view number, std::string_view rest) {
  return std::string(prefix).append(number).append(rest);
}

}  // namespace

bool has_internvl_chat_names(std::string_view model_type) { return model_type == "internvl_chat"; }

bool are_internvl_chat_names(const std::vector<std::string>& names) {
  return std::ranges::any_of(names, [](const std::string& name) { return name.starts_with("mlp1."); });
}

StoredPart internvl_chat_part(std::string_view path) {
  if (const auto layer = in_layer(path, &Pair::ours)) {
    for (std::size_t i = 0; i < std::size(kParts); ++i) {
      if (!layer->rest.starts_with(kParts[i])) continue;
      const std::string rest = std::string(kFused).append(layer->rest.substr(kParts[i].size()));
      return {joined(kLayers.theirs, layer->number, rest), static_cast<std::int64_t>(i), std::ssize(kParts)};
    }
    const auto rest = renamed(layer->rest, kInLayer, &Pair::ours, &Pair::theirs);
    return {rest ? joined(kLayers.theirs, layer->number, *rest) : std::string(path)};
  }
  return {renamed(path, kOutside, &Pair::ours, &Pair::theirs).value_or(std::string(path))};
}

std::vector<std::string> internvl_chat_paths(std::string_view name) {
  if (const auto layer = in_layer(name, &Pair::theirs)) {
    std::vector<std::string> paths;
    if (layer->rest.starts_with(kFused)) {
      const std::string_view kind = layer->rest.substr(kFused.size());
      for (const std::string_view part : kParts)
        paths.push_back(joined(kLayers.ours, layer->number, std::string(part).append(kind)));
      return paths;
    }
    const auto rest = renamed(layer->rest, kInLayer, &Pair::theirs, &Pair::ours);
    return {rest ? joined(kLayers.ours, layer->number, *rest) : std::string(name)};
  }
  return {renamed(name, kOutside, &Pair::theirs, &Pair::ours).value_or(std::string(name))};
}

}  // namespace loom::models
