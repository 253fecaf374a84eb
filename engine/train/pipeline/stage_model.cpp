#include "engine/train/pipeline/stage_model.h"

#include <algorithm>
#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/core/rng_state.h"
#include "engine/nn/router_loss.h"
#include "sharding/tensor/share_matrices.h"

namespace loom::train {

PipelineStage::PipelineStage(std::shared_ptr<nn::Module> model, sharding::StageLayout layout)
    : layout_(std::move(layout)), model_(std::move(model)) {
  register_module("(model)", model_);
}

nn::Value PipelineStage::forward(const nn::Args& args) {
  nn::Args replaced = args;
  if (!layout_.embedding) {
    require(input_.defined(), "stage {} is called without hidden states", layout_.stage);
    replaced.positional.clear();
    replaced.named.emplace_back("inputs_embeds", std::exchange(input_, {}));
    RngState::current().calls = draws_;
  }
  nn::Value result = model_->call(std::move(replaced));
  draws_ = RngState::current().calls;
  return result;
}

PipelineModel::PipelineModel(std::vector<std::shared_ptr<PipelineStage>> stages, comm::World& ranks)
    : stages_(std::move(stages)), ranks_(ranks) {
  for (const auto& stage : stages_) register_module(fmt::format("(stage {})", stage->layout().stage), stage);
}

PipelineStage& PipelineModel::stage(std::int64_t number) const {
  const auto found =
      std::ranges::find_if(stages_, [number](const auto& stage) { return stage->layout().stage == number; });
  require(found != stages_.end(), "stage {} is not on this rank", number);
  return **found;
}

bool PipelineModel::fully_shard(comm::World&, const sharding::Fsdp2Config& config,
                                const models::Fsdp2Options& options) {
  for (const auto& stage : stages_) {
    const auto resolved = models::fully_shard(stage->model(), ranks_, config, options);
    if (!resolved) return false;
    adopt_resolved(*resolved);
    sharding::add_shares(*this, stage->root());
    // The forward step asks the model that it calls.
    if (auto own_loss = stage->root().attachment<nn::OwnLoss>()) stage->attach(std::move(own_loss));
  }
  return true;
}

std::string PipelineModel::config_json() const {
  const auto* mixin = dynamic_cast<const models::FSDP2Mixin*>(&stages_.front()->model());
  return mixin == nullptr ? std::string{} : mixin->config_json();
}

}  // namespace loom::train
