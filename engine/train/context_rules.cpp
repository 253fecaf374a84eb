#include "engine/train/context_rules.h"

#include <utility>

#include "engine/core/error.h"
#include "engine/data/split_sequences.h"

namespace loom::train {

void split_sequences(const TrainSections& arguments, TrainingInputs& inputs) {
  if (inputs.dims.degrees().cp == 1) return;
  const objective::StageRow& stage = objective::row_of(arguments.objective.stage);
  if (stage.forward != objective::Forward::kNextToken) {
    config_error("--stage {}: its loss is of whole sequences, which {} ranks share; remove context parallelism",
                 stage.word, inputs.dims.degrees().cp);
  }
  if (arguments.objective.loss_reduction != objective::LossReduction::kPerToken) {
    config_error(
        "--loss-reduction: {} ranks share a sequence, so that the loss is the mean over the tokens of the whole step; "
        "remove the flag",
        inputs.dims.degrees().cp);
  }
  inputs.objective.loaders =
      data::split_sequences(std::move(inputs.objective.loaders), inputs.fsdp2->sequences.degrees);
}

}  // namespace loom::train
