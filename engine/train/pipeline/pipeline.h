// Pipeline: the stages of this rank, and how a step runs through them.
//
// Step      the rank's list of actions (pipeline_plan.h). Gradients of all micro-batches are added up on a stage and
//           reduced once, behind its last backward; parameters are gathered as torch's pipelines gather them.
// Messages  outputs and gradients between stages of neighbouring ranks (stage_links.h); stages of one rank hand them
//           over.
// Ties      of embedding and output layer: both ends of the pipeline have the parameter, and add their gradients behind
//           the last backward of a step (sharding/pipeline/keep_stage.h).
// Bits      gradients are added in the order of micro-batches, in every schedule but LoopedBFS.
// Errors    of this rank reach the others before it waits for its messages.
// Threads   the rank's host thread; every call is collective over the job.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/comm/mesh.h"
#include "engine/data/step.h"
#include "engine/nn/state_dict.h"
#include "engine/tensor/split_backward.h"
#include "engine/train/pipeline/pipeline_plan.h"
#include "engine/train/pipeline/stage_links.h"
#include "engine/train/pipeline/stage_model.h"
#include "engine/train/step/step_metrics.h"
#include "sharding/pipeline/keep_stage.h"

namespace loom::train {

class Pipeline {
 public:
  // What a stage computes, by the trainer.
  struct Work {
    // The result of the stage: its loss, times its weight and the loss scale, or its hidden states.
    std::function<Tensor(PipelineStage& stage, std::int64_t micro_batch)> forward;
    std::function<void(std::string_view phase)> begin_phase;
  };

  // `whole` makes the whole model, on the meta device.
  Pipeline(const PipelinePlan& plan, const std::function<std::shared_ptr<nn::Module>()>& whole, comm::World& world,
           comm::Axis axis);
  ~Pipeline();

  const std::shared_ptr<PipelineModel>& model() const { return model_; }
  // Whether this rank has the last stage, and the loss.
  bool has_loss() const { return axis_.rank() == loss_rank_; }
  const comm::Axis& axis() const { return axis_; }
  comm::World& ranks_of_stage() const { return *ranks_of_stage_; }

  // Once the shards are made, before the first step.
  void begin();
  void run_step(const Work& work);
  // Forwards alone, through all stages.
  void evaluate(std::int64_t micro_batches, const Work& work);

  // Replaces the figures by those of the rank that has the loss.
  void share(double& loss, Reports& reports) const;

  // The whole model's ties, of entries of this rank's stages.
  void add_ties(nn::StateDict& entries) const;

  // The texts of all ranks that differ in their stage alone, in the order of these.
  std::vector<std::vector<std::string>> lines_of_stages(const std::vector<std::string>& own,
                                                        std::string_view tag) const;

  // Tensors of all stages, on the rank that has the loss, in the order of stages: `own` are this rank's. Of ranks that
  // differ in their stage alone. Nothing on the others.
  std::vector<std::pair<std::string, Tensor>> collected(std::vector<std::pair<std::string, Tensor>> own) const;

 private:
  using Key = std::pair<std::int64_t, std::int64_t>;  // stage and micro-batch
  struct Passed {
    Tensor input;  // a leaf; undefined on the first stage
    Tensor output;
    std::uint64_t draws = 0;  // of operators, up to the output
  };

  void run(const PipelineAction& action, const Work& work);
  void forward(const PipelineAction& action, const Work& work);
  void backward(const PipelineAction& action, const Work& work);
  void backward_of_weights(const PipelineAction& action, const Work& work);
  StageMessage output_of(const Key& at) const;
  StageMessage received(const Key& at, bool is_gradient);
  bool is_here(std::int64_t stage) const;
  int rank_of(std::int64_t stage) const;
  bool is_last(std::int64_t stage) const { return stage + 1 == static_cast<std::int64_t>(plan_.stages.size()); }
  nn::Module& root_of(std::int64_t stage) const;
  void message(const PipelineAction& action);
  void evaluate_stage(std::int64_t stage, std::int64_t micro_batch, const Work& work);
  void run_all(const std::function<void()>& work);
  void add_shared_gradients();

  const PipelinePlan plan_;
  const comm::Axis axis_;
  const int loss_rank_;
  const std::unique_ptr<comm::World> ranks_of_stage_;
  std::shared_ptr<PipelineModel> model_;
  StageLinks links_;
  // Of parameters that the first and the last stage have in common:
  std::shared_ptr<comm::ProcessGroup> ends_;  // the ranks of these stages; null: one rank, or not this one, or no ties
  std::vector<sharding::SharedSlot> shared_;  // this rank's, of its first stage before those of its last
  std::map<Key, Passed> passed_;
  std::map<Key, autograd::RestOfBackward> rest_;
  std::map<Key, StageMessage> handed_outputs_, handed_gradients_;  // for the stage that receives them
  std::map<std::int64_t, bool> is_gathering_;                      // by stage: unshard was started, and not waited for
};

}  // namespace loom::train
