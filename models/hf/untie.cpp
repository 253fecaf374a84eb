#include "models/hf/untie.h"

#include <unordered_map>
#include <unordered_set>

#include "engine/core/error.h"

namespace loom::models {
namespace {

std::unordered_set<const void*> parameters_of_embeddings(nn::Module& model) {
  std::unordered_set<const void*> found;
  for (auto& [path, module] : model.named_modules()) {
    if (module->type_name() != "Embedding") continue;
    for (const auto& slot : module->own_parameters()) found.insert(slot->value.id());
  }
  return found;
}

// "model.embed_tokens.weight" -> "embed_tokens.weight": the name in a folder saved without its head.
std::string without_first(const std::string& path) { return path.substr(path.find('.') + 1); }

}  // namespace

std::vector<Untied> untie_embeddings_and_output_weights(nn::Module& model) {
  const auto of_embedding = parameters_of_embeddings(model);
  std::unordered_map<const void*, std::string> first_path;
  std::vector<Untied> untied;
  for (auto& [path, slot] : model.named_slots()) {
    const Tensor shared = slot->value;
    const auto [first, is_new] = first_path.emplace(shared.id(), path);
    if (is_new || !of_embedding.contains(shared.id())) continue;
    require(shared.is_meta(), "'{}' is untied after it was given bytes", path);
    slot->value = Tensor::meta(shared.shape(), shared.dtype(), path);
    slot->value.set_requires_grad(shared.requires_grad());
    untied.push_back({path, first->second});
  }
  return untied;
}

void share_stored(io::HfWeights& weights, const Untied& untied) {
  for (const std::string& tied : {untied.tied_path, without_first(untied.tied_path)}) {
    if (weights.find(tied) != nullptr) return weights.add_alias(untied.path, tied);
  }
  // The other way round: the folder has the tensor under the output layer's name only.
  if (weights.find(untied.path) != nullptr) weights.add_alias(untied.tied_path, untied.path);
}

}  // namespace loom::models
