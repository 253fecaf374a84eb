#include "sharding/pipeline/keep_stage.h"

#include <algorithm>
#include <fmt/format.h>
#include <unordered_map>

#include "engine/core/error.h"
#include "engine/nn/absent.h"

namespace loom::sharding {
namespace {

// The paths of modules that the stage does not have.
std::vector<std::string> paths_elsewhere(const PipelineParts& parts, std::int64_t layers, const StageLayout& stage) {
  std::vector<std::string> elsewhere;
  if (!stage.embedding) elsewhere.insert(elsewhere.end(), parts.embedding.begin(), parts.embedding.end());
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    if (std::ranges::find(stage.layers, layer) == stage.layers.end()) {
      elsewhere.push_back(fmt::format("{}.{}", parts.layers, layer));
    }
  }
  if (!stage.loss) elsewhere.insert(elsewhere.end(), parts.output.begin(), parts.output.end());
  return elsewhere;
}

// A tie of the embedding to the output layer would have to be kept between ranks.
void check_untied(const nn::Module& model, const std::vector<std::string>& elsewhere) {
  std::unordered_map<const void*, std::string> paths;
  for (const auto& [path, slot] : model.named_slots()) {
    const auto [first, is_new] = paths.emplace(slot->value.id(), path);
    if (is_new) continue;
    config_error(
        "a pipeline has '{}' on its first stage and '{}' on its last, and they are one parameter; add "
        "--untie-embeddings-and-output-weights, or use --pipeline-model-parallel-size 1",
        first->second, path);
  }
  for (const std::string& path : elsewhere) {
    require(model.find(path) != nullptr, "PipelineParts of {} name '{}', which it does not have", model.type_name(),
            path);
  }
}

}  // namespace

const PipelineParts& pipeline_parts(const nn::Module& model) {
  const auto parts = model.attachment<PipelineParts>();
  if (parts != nullptr) return *parts;
  config_error(
      "{} cannot be cut into stages: it declares no sharding::PipelineParts (docs/pipelines.md says how); use "
      "--pipeline-model-parallel-size 1",
      model.type_name());
}

std::int64_t pipeline_layers(const nn::Module& model) {
  const nn::Module* layers = model.find(pipeline_parts(model).layers);
  require(layers != nullptr, "PipelineParts of {} name no list of layers", model.type_name());
  return static_cast<std::int64_t>(layers->children().size());
}

void keep_stage(nn::Module& model, const StageLayout& stage) {
  const std::vector<std::string> elsewhere = paths_elsewhere(pipeline_parts(model), pipeline_layers(model), stage);
  check_untied(model, elsewhere);
  for (const std::string& path : elsewhere) model.replace_child(path, std::make_shared<nn::Absent>());
}

}  // namespace loom::sharding
