#include "models/hf/transformers_model.h"

#include "models/hf/hf_folder.h"

namespace loom::models {
namespace {

bool has_weights(const std::filesystem::path& path) {
  std::error_code unreadable;  // shows when the configuration is read
  return std::filesystem::exists(path / "model.safetensors", unreadable) ||
         std::filesystem::exists(path / "model.safetensors.index.json", unreadable);
}

}  // namespace

TransformersModel::TransformersModel(const std::filesystem::path& path, const TransformersOptions& options,
                                     const ModelHub& hub) {
  const ConfigReader config = ConfigReader::load(path);
  model_ = hub.build(config);
  register_module("model", model_);
  config_json_ = config.json();
  if (!options.init_model_with_meta_device && has_weights(path)) {
    weights_.emplace(path);
    check_weights(*model_, *weights_);
  }
  models::freeze(*model_, config);
  if (config.strict()) config.refuse_unread();
}

nn::Module& TransformersModel::sharded_module() { return models::sharded_module(*model_); }

bool TransformersModel::fully_shard(comm::World& world, const sharding::Fsdp2Config& fsdp2_config,
                                    const Fsdp2Options& options) {
  Fsdp2Options inner = options;
  if (!inner.weights.load && weights_) {
    inner.weights.load = [this](nn::Module& model) { load_weights(model, *weights_); };
  }
  const auto plan = models::fully_shard(*model_, world, fsdp2_config, inner);
  if (plan) adopt_resolved(*plan);
  return plan.has_value();
}

bool TransformersModel::load_pretrained() {
  if (!weights_) return false;
  load_weights(*model_, *weights_);
  return true;
}

}  // namespace loom::models
