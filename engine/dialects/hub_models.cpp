#include "engine/dialects/hub_models.h"

#include "engine/core/error.h"
#include "engine/core/rank_context.h"
#include "engine/nn/make_rank.h"
#include "engine/nn/path_aliases.h"
#include "models/graph/graph_model.h"
#include "models/hub/model_hub.h"

namespace loom::dialects {
namespace {

ModelTree tree_of(nn::Module& model) {
  std::vector<TreeModule> modules;
  for (const auto& [path, module] : model.named_modules()) {
    if (path.empty()) continue;
    TreeModule found{path, std::string(module->type_name()), module->has_forward()};
    for (const Tensor& parameter : module->parameters()) found.parameters += parameter.numel();
    modules.push_back(std::move(found));
  }
  std::vector<std::string> aliases;
  for (const nn::PathAlias& entry : nn::path_aliases(model)) aliases.push_back(entry.alias);
  return {std::move(modules), model.named_slots().size() != model.named_parameters().size(), std::move(aliases)};
}

std::optional<ModelTree> load(const std::filesystem::path& configuration) {
  try {
    RankContext context(0, 1);
    const RankScope scope(context);
    nn::make_rank(context, {});
    return tree_of(*models::ModelHub::global().build(configuration));
  } catch (const ConfigError&) {
    return std::nullopt;  // where the job needs the model, its own reader says what is wrong
  }
}

ModelTree load_graph(const std::filesystem::path& graph) {
  RankContext context(0, 1);
  const RankScope scope(context);
  nn::make_rank(context, {});
  const auto program =
      std::make_shared<const models::GraphProgram>(models::make_graph_program(models::GraphFile(graph).at()));
  return tree_of(*models::make_graph_model(program));
}

}  // namespace

Models hub_models() { return {models::ModelHub::global().names(), load, load_graph}; }

}  // namespace loom::dialects
