#include "sharding/pipeline/keep_stage.h"

#include <algorithm>
#include <fmt/format.h>
#include <unordered_map>
#include <utility>

#include "engine/core/error.h"
#include "engine/nn/absent.h"

namespace loom::sharding {
namespace {

bool is_in(const std::string& path, const std::vector<std::string>& modules) {
  return std::ranges::any_of(modules, [&](const std::string& module) { return path.starts_with(module + "."); });
}

// Of parameters of the embedding that the output part holds too: their paths there and there.
using Ties = std::vector<std::pair<std::string, std::string>>;

Ties ties_of(const nn::Module& model, const PipelineParts& parts) {
  std::unordered_map<const void*, std::string> first_path;
  Ties tied;
  for (const auto& [path, slot] : model.named_slots()) {
    const auto [first, is_new] = first_path.emplace(slot->value.id(), path);
    if (is_new) continue;
    if (is_in(first->second, parts.embedding) && is_in(path, parts.output)) {
      tied.emplace_back(first->second, path);
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
std::vector<std::string> paths_elsewhere(const nn::Module& model, const PipelineParts& parts, const Ties& ties,
                                         const StageLayout& stage) {
  std::vector<std::string> elsewhere;
  for (const std::string& path : parts.embedding) {
    const bool is_tied = std::ranges::any_of(ties, [&](const auto& tie) { return is_in(tie.first, {path}); });
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

// Attached to a model that was cut.
struct TiesOfStage {
  Ties ties;
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
  Ties ties = ties_of(model, parts);
  for (const std::string& path : paths_elsewhere(model, parts, ties, stage)) {
    require(model.find(path) != nullptr, "PipelineParts of {} name '{}', which it does not have", model.type_name(),
            path);
    model.replace_child(path, std::make_shared<nn::Absent>());
  }
  if (!stage.embedding && !stage.loss) ties.clear();
  model.attach(std::make_shared<TiesOfStage>(TiesOfStage{std::move(ties)}));
}

std::vector<SharedSlot> shared_slots(nn::Module& model) {
  std::vector<SharedSlot> shared;
  const auto own = model.attachment<TiesOfStage>();
  if (own == nullptr) return shared;
  for (const auto& [path, slot] : model.named_slots()) {
    const auto tie = std::ranges::find(own->ties, path, &std::pair<std::string, std::string>::first);
    if (tie != own->ties.end()) shared.push_back({path, tie->second, slot});
  }
  return shared;
}

}  // namespace loom::sharding
