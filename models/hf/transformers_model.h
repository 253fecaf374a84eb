// TransformersModel: a Hugging Face folder as a model to train.
//
// Built     config.json (or a .json, .yaml file) -> ModelHub -> the inner model, on the meta device -> its freeze().
// Weights   from the folder, if it holds any and init_model_with_meta_device is off: every rank reads its own rows when
//           the model gets memory. Otherwise initial values are random. Both in fp32, and never whole on a rank.
// Sharding  delegated: patterns of fsdp2_config.yaml, and names of weights, are relative to the inner model.
// Call      the inner model's.
// Errors    ConfigError: the hub's, for a key of a YAML that neither the model nor its freeze() read, for the folder's
//           weights (before anything is allocated), of fully_shard().
// Threads   the rank's host thread.
// Source    MindSpeed-MM, models/transformers_model.py.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "engine/formats/safetensors/hf_weights.h"
#include "engine/nn/module.h"
#include "models/hub/model_hub.h"
#include "models/mixin/fsdp2_mixin.h"

namespace loom::models {

struct TransformersOptions {
  bool init_model_with_meta_device = false;  // random initial values even if the folder has weights
};

class TransformersModel final : public nn::Module, public FSDP2Mixin {
 public:
  explicit TransformersModel(const std::filesystem::path& path, const TransformersOptions& options = {},
                             const ModelHub& hub = ModelHub::global());

  std::string_view type_name() const override { return "TransformersModel"; }
  nn::Module& model() { return *model_; }
  // The weights that it starts from, or null.
  const io::HfWeights* weights() const { return weights_ ? &*weights_ : nullptr; }

  bool fully_shard(comm::World& world, const sharding::Fsdp2Config& fsdp2_config,
                   const Fsdp2Options& options = {}) override;
  using FSDP2Mixin::fully_shard;
  nn::Module& sharded_module() override;
  bool load_pretrained() override;
  std::string config_json() const override { return config_json_; }

 protected:
  nn::Value forward(const nn::Args& args) override { return model_->call(args); }

 private:
  std::shared_ptr<nn::Module> model_;
  std::string config_json_;
  std::optional<io::HfWeights> weights_;
};

}  // namespace loom::models
