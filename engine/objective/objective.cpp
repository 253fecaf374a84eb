#include "engine/objective/objective.h"

#include "engine/core/error.h"
#include "engine/data/byte_batches.h"
#include "engine/objective/preference_step.h"
#include "engine/objective/reference_model.h"
#include "engine/objective/reward_step.h"

namespace loom::objective {
namespace {

std::vector<double> looked_up(const ReferenceLogProbs& values, const nn::ValueList& numbers) {
  std::vector<double> found;
  for (const std::vector<double>* answers : {&values.chosen, &values.rejected}) {
    for (const nn::Value& number : numbers) found.push_back(answers->at(static_cast<std::size_t>(number.number())));
  }
  return found;
}

// Shapes without values: enough for a plan. `rows`: of a sample.
data::DataLoaders loaders_of_shapes(std::int64_t seq_length, std::int64_t rows) {
  return {.train = [seq_length, rows](std::span<const std::int64_t> samples) {
    const Shape shape{rows * static_cast<std::int64_t>(samples.size()), seq_length};
    return data::Batch{{{"input_ids", Tensor::meta(shape, DType::kI32, "input_ids")},
                        {"targets", Tensor::meta(shape, DType::kI32, "targets")}}};
  }};
}

}  // namespace

data::ForwardResult RankObjective::forward(data::DataIterator& data, nn::Module& model) const {
  data.set_objective(objective_.loss_chunk_size, [this](data::Batch& batch) { complete(batch); });
  return objective_.forward_step(data, model);
}

void RankObjective::complete(data::Batch& batch) const {
  if (const nn::Value& numbers = batch.find("numbers"); values_ && !numbers.is_none()) {
    batch.reference_log_probs = looked_up(*values_, numbers.list());
  } else if (model_ != nullptr) {
    batch.reference_log_probs = log_probs_of(*model_, batch);
  }
}

std::vector<double> reference_log_probs(const data::Batch& batch) {
  if (!batch.reference_log_probs.empty()) return batch.reference_log_probs;
  if (const Tensor& ids = batch["input_ids"]; ids.raw() == nullptr) {
    return std::vector<double>(static_cast<std::size_t>(ids.shape()[0]));
  }
  config_error(
      "there is neither a reference model nor its log-probabilities; set has_reference_model in PretrainCallbacks, or "
      "give --ref-logps-cache and number the samples (DataLoaders::numbered)");
}

data::DataLoaders loaders_of(const StageRow& stage, const data::DataOptions& data, const data::TokenIds& tokens,
                             const data::RunLength& run) {
  if (data::data_inputs(data).empty()) return loaders_of_shapes(data.seq_length, stage.has_pairs ? 2 : 1);
  const data::DataKind kind = data::data_kind(data);
  if (kind == data::DataKind::kBytes) return data::byte_data_loaders(data);
  const data::SampleCounts counts = data::sample_counts(run);
  if (kind == data::DataKind::kTokens) return data::token_data_loaders(data, tokens, counts);
  const std::int64_t batch = run.global_batch_size;
  switch (stage.samples) {
    case Samples::kInstructions:
      return data::instruction_data_loaders(data, tokens, counts, batch);
    case Samples::kPairs:
      return data::preference_data_loaders(data, tokens, counts, batch);
    case Samples::kScoredPairs:
      return data::outcome_reward_data_loaders(data, tokens, counts, batch);
    case Samples::kStepRewards:
      return data::process_reward_data_loaders(data, tokens, counts, batch);
  }
  throw InvariantError("internal: samples of no kind");
}

data::ForwardStep forward_step_of(const StageRow& stage, const ObjectiveOptions& options,
                                  const data::TokenIds& tokens) {
  switch (stage.forward) {
    case Forward::kNextToken:
      return options.loss_reduction == LossReduction::kPerSample ? data::next_token_step_per_sample
                                                                 : data::next_token_step;
    case Forward::kPreference:
      return preference_step(options.preference);
    case Forward::kOutcomeReward:
      return outcome_reward_step();
    case Forward::kProcessReward:
      return process_reward_step(tokens.rewards);
  }
  throw InvariantError("internal: a forward of no kind");
}

std::string unit_of(const StageRow& stage, const data::DataOptions& data) {
  if (!stage.unit.empty()) return std::string(stage.unit);
  return data::data_kind(data) == data::DataKind::kBytes ? "nats per byte" : "nats per token";
}

}  // namespace loom::objective
