#include "engine/objective/preference_step.h"

#include <algorithm>

#include "engine/nn/router_loss.h"
#include "engine/objective/objective.h"
#include "engine/tensor/ops.h"

namespace loom::objective {
namespace {

// Targets of each row that count; of shapes without values, all.
std::vector<std::int64_t> tokens_of(const Tensor& targets) {
  const std::int64_t rows = targets.shape()[0], length = targets.shape()[1];
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(rows), length);
  if (targets.raw() == nullptr) return tokens;
  const auto* first = targets.data<std::int32_t>();
  for (std::int64_t row = 0; row < rows; ++row) {
    tokens[static_cast<std::size_t>(row)] = length - std::count(first + row * length, first + (row + 1) * length,
                                                                static_cast<std::int32_t>(ops::kIgnoreIndex));
  }
  return tokens;
}

}  // namespace

data::ForwardStep preference_step(const PreferenceOptions& options) {
  return [options](data::DataIterator& data, nn::Module& model) -> data::ForwardResult {
    nn::refuse_router_loss(model, "a preference loss");
    const data::Batch batch = data.next();
    std::vector<double> reference;
    if (options.has_reference()) reference = reference_log_probs(batch);
    const auto loss_func = [options, targets = batch["targets"],
                            reference = std::move(reference)](const nn::Value& logits) -> data::Loss {
      const std::vector<std::int64_t> tokens = tokens_of(targets);
      PreferenceLoss result = preference_loss(ops::sequence_log_probs(logits, targets), {reference, tokens}, options);
      return {std::move(result.loss), std::move(result.reports)};
    };
    return {model(batch["input_ids"]), loss_func};
  };
}

}  // namespace loom::objective
