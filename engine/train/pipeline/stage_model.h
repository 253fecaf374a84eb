// The stages of a pipeline that a rank has, as one model.
//
// Paths     those of the whole model: what other ranks have is missing, or nn::Absent.
// Call      a stage is called as the whole model, by the same code of the user: a stage without embedding takes the
//           hidden states that came to it (set_input_tensor) in place of the first argument, and one without output
//           layer returns hidden states. Megatron's pipelines do the same.
// Sharding  each stage is a root of its own, over the ranks of its stage.
// Threads   the rank's host thread.
#pragma once

#include <memory>
#include <vector>

#include "engine/comm/process_group.h"
#include "engine/nn/module.h"
#include "models/mixin/fsdp2_mixin.h"
#include "sharding/pipeline/stage_layout.h"

namespace loom::train {

class PipelineStage final : public nn::Module {
 public:
  PipelineStage(std::shared_ptr<nn::Module> model, sharding::StageLayout layout);
  std::string_view type_name() const override { return "PipelineStage"; }

  const sharding::StageLayout& layout() const { return layout_; }
  nn::Module& model() { return *model_; }
  // The root of its parameters' paths, and of its shards.
  nn::Module& root() { return models::sharded_module(*model_); }

  // What the next call takes in place of its first argument, and the draws of operators before it in the forward.
  void set_input_tensor(Tensor hidden, std::uint64_t draws) {
    input_ = std::move(hidden);
    draws_ = draws;
  }
  // After a call: with its own.
  std::uint64_t draws() const { return draws_; }

 protected:
  nn::Value forward(const nn::Args& args) override;

 private:
  const sharding::StageLayout layout_;
  const std::shared_ptr<nn::Module> model_;
  Tensor input_;
  std::uint64_t draws_ = 0;
};

// It is never called; its stages are.
class PipelineModel final : public nn::Module, public models::FSDP2Mixin {
 public:
  // `ranks`: of one stage; it outlives this.
  PipelineModel(std::vector<std::shared_ptr<PipelineStage>> stages, comm::World& ranks);
  // The whole model's.
  std::string_view type_name() const override { return stages_.front()->root().type_name(); }
  bool has_forward() const override { return false; }

  const std::vector<std::shared_ptr<PipelineStage>>& stages() const { return stages_; }
  PipelineStage& stage(std::int64_t number) const;

  // Over the ranks of the stage, whatever `world` is.
  bool fully_shard(comm::World& world, const sharding::Fsdp2Config& config,
                   const models::Fsdp2Options& options = {}) override;
  using FSDP2Mixin::fully_shard;
  nn::Module& sharded_module() override { return *this; }
  std::string config_json() const override;

 protected:
  nn::Value forward(const nn::Args&) override { return {}; }  // has_forward() is false

 private:
  const std::vector<std::shared_ptr<PipelineStage>> stages_;
  comm::World& ranks_;
};

}  // namespace loom::train
