#include "engine/train/context_rules.h"

#include <utility>

#include "engine/core/error.h"
#include "engine/core/rounding.h"
#include "engine/data/split_sequences.h"
#include "engine/data/token_batches.h"

namespace loom::train {
namespace {

int token_cuts(const TrainingInputs& inputs) { return inputs.fsdp2 ? inputs.fsdp2->matrices.token_cuts() : 1; }

// Of rows of one length.
void check_slices(const TrainSections& arguments, const TrainingInputs& inputs) {
  if (!inputs.fsdp2 || inputs.fsdp2->matrices.slices == 1) return;
  if (objective::row_of(arguments.objective.stage).forward != objective::Forward::kNextToken) return;
  const sharding::SharedMatrices& matrices = inputs.fsdp2->matrices;
  const dist::ContextDegrees& degrees = inputs.fsdp2->sequences.degrees;
  const std::int64_t row = round_up(std::int64_t{arguments.data.seq_length},
                                    dist::length_unit(degrees) * std::int64_t{matrices.token_cuts()});
  const std::int64_t tokens = row / (std::int64_t{degrees.ranks()} * matrices.ranks);
  if (tokens % matrices.slices == 0) return;
  config_error(
      "{}: overlap_slices is {}, but a rank has {} tokens of --seq-length {} between its blocks; use a number that "
      "divides {}",
      matrices.slices_mark, matrices.slices, tokens, arguments.data.seq_length, tokens);
}

}  // namespace

void split_sequences(const TrainSections& arguments, TrainingInputs& inputs) {
  check_slices(arguments, inputs);
  data::DataLoaders& loaders = inputs.objective.loaders;
  if (inputs.dims.degrees().cp == 1) {
    if (const int cuts = token_cuts(inputs); cuts > 1) {
      loaders = data::split_sequences(
          std::move(loaders), {}, [](int) { return 0; }, cuts);
    }
    return;
  }
  const objective::StageRow& stage = objective::row_of(arguments.objective.stage);
  if (stage.forward != objective::Forward::kNextToken) {
    config_error("--stage {}: its loss is of whole sequences, which {} ranks share; remove context parallelism",
                 stage.word, inputs.dims.degrees().cp);
  }
  const objective::LossReduction reduction = arguments.objective.loss_reduction;
  if (reduction == objective::LossReduction::kPerSample) {
    config_error(
        "--loss-reduction per_sample: {} ranks share each sample; use per_token or micro_batch, or remove context "
        "parallelism",
        inputs.dims.degrees().cp);
  }
  loaders = data::split_sequences(
      std::move(loaders), inputs.fsdp2->sequences.degrees,
      [dims = inputs.dims](int rank) { return dims.context_rank(rank); }, token_cuts(inputs));
  if (reduction != objective::LossReduction::kMicroBatch) return;
  loaders.count_tokens = [](const data::Batch& batch) -> data::TokenCounts {
    data::TokenCounts counts = data::count_targets(batch);
    counts.weight = batch.share;
    return counts;
  };
}

}  // namespace loom::train
