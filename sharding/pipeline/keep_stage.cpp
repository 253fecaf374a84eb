#include "sharding/pipeline/keep_stage.h"

#include <algorithm>
#include <fmt/format.h>
#include <unordered_map>

#include "engine/core/error.h"
#include "engine/nn/absent.h"

namespace loom::sharding {
namespace {

bool is_in(const std::string& path, const std::vector<std::string>& modules) {
  return std::ranges::any_of(modules, [&](const std::string& module) { return path.starts_with(module + "."); });
}

// The paths of parameters of the embedding that the output part holds too.
std::vector<std::string> tied_paths(const nn::Module& model, const PipelineParts& parts) {
  std::unordered_map<const void*, std::string> first_path;
  std::vector<std::string> tied;
  for (const auto& [path, slot] : model.named_slots()) {
    const auto [first, is_new] = first_path.emplace(slot->value.id(), path);
    if (is_new) continue;
    if (is_in(first->second, parts.embedding) && is_in(path, parts.output)) {
      tied.push_back(first->second);
      continue;
    }
    config_error(
        "'{}' and '{}' are one parameter, and a pipeline may have them on two stages; untie them, or use "
        "--pipeline-model-parallel-size 1",
        first->second, path);
  }
  return tied;
}

// The paths of modules that the stage does not have.
std::vector<std::string> paths_elsewhere(const nn::Module& model, const PipelineParts& parts,
                                         const std::vector<std::string>& tied, const StageLayout& stage) {
  std::vector<std::string> elsewhere;
  for (const std::string& path : parts.embedding) {
    const bool is_tied =
        std::ranges::any_of(tied, [&](const std::string& parameter) { return is_in(parameter, {path}); });
    if (!stage.embedding && !(stage.loss && is_tied)) elsewhere.push_back(path);
  }
  for (std::int64_t layer = 0; layer < pipeline_layers(model); ++layer) {
    if (std::ranges::find(stage.layers, layer) == stage.layers.end()) {
      elsewhere.push_back(fmt::format("{}.{}", parts.layers, layer));
    }
  }
  if (!stage.loss) elsewhere.insert(elsewhere.end(), parts.output.begin(), parts.output.end());
  return elsewhere;
}

// Attached to a model that was cut: the tied parameters.
struct TiedPaths {
  std::vector<std::string> paths;
};

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
  const PipelineParts& parts = pipeline_parts(model);
  std::vector<std::string> tied = tied_paths(model, parts);
  for (const std::string& path : paths_elsewhere(model, parts, tied, stage)) {
    require(model.find(path) != nullptr, "PipelineParts of {} name '{}', which it does not have", model.type_name(),
            path);
    model.replace_child(path, std::make_shared<nn::Absent>());
  }
  if (!stage.embedding && !stage.loss) tied.clear();
  model.attach(std::make_shared<TiedPaths>(TiedPaths{std::move(tied)}));
}

std::vector<std::pair<std::string, nn::ParamSlot*>> shared_slots(nn::Module& model) {
  std::vector<std::pair<std::string, nn::ParamSlot*>> shared;
  const auto tied = model.attachment<TiedPaths>();
  if (tied == nullptr) return shared;
  for (const auto& [path, slot] : model.named_slots()) {
    if (std::ranges::find(tied->paths, path) != tied->paths.end()) shared.emplace_back(path, slot);
  }
  return shared;
}

}  // namespace loom::sharding
