#include "engine/objective/reward_step.h"

#include "engine/data/byte_batches.h"
#include "engine/nn/router_loss.h"
#include "engine/objective/reward_loss.h"

namespace loom::objective {
namespace {

std::vector<std::int64_t> lengths_of(const data::Batch& batch) {
  const Tensor& ids = batch["input_ids"];
  if (ids.raw() == nullptr) {
    return std::vector<std::int64_t>(static_cast<std::size_t>(ids.shape()[0]), ids.shape()[1]);
  }
  std::vector<std::int64_t> lengths;
  for (const nn::Value& length : batch.at("lengths").list()) lengths.push_back(length.number());
  return lengths;
}

}  // namespace

data::ForwardStep outcome_reward_step() {
  return [](data::DataIterator& data, nn::Module& model) -> data::ForwardResult {
    const data::Batch batch = data.next();
    const auto loss_func = [lengths = lengths_of(batch)](const nn::Value& scores) -> data::Loss {
      RewardLoss result = outcome_reward_loss(scores, lengths);
      return {std::move(result.loss), std::move(result.reports)};
    };
    return {model(batch["input_ids"]), loss_func};
  };
}

data::ForwardStep process_reward_step(std::vector<std::int32_t> labels) {
  return [labels = std::move(labels)](data::DataIterator& data, nn::Module& model) -> data::ForwardResult {
    nn::refuse_router_loss(model, "the loss of a reward model");
    const data::Batch batch = data.next();
    const auto loss_func = [labels, targets = batch["targets"]](const nn::Value& logits) -> data::Loss {
      RewardLoss result = process_reward_loss(logits, targets, labels);
      return {std::move(result.loss), std::move(result.reports)};
    };
    return {data::call_with_ids(model, batch), loss_func};
  };
}

}  // namespace loom::objective
