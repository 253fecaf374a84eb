// Losses of reward models.
//
// Outcome  pairs of answers, as in preference_loss.h: row i is the chosen answer of pair i, row n + i the
//          rejected one. The reward of a row is the score of its last token. Loss: the mean over the pairs of
//          -log s(reward of the chosen answer - reward of the rejected one), s the logistic function.
// Process  a label at the end of each step of a text: the cross entropy of the logits at that token (not before it),
//          over the tokens that are labels or, if labels are named, over these alone.
// Source   MindSpeed-LLM tasks/posttrain/{orm,prm}, trl RewardTrainer.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/tensor/tensor.h"

namespace loom::objective {

struct RewardLoss {
  Tensor loss;  // one element, recorded on the tape; fp32 (fp64)
  std::vector<std::pair<std::string, double>> reports;
};

// `scores` [2 n, S, 1], `lengths` the tokens of each row before its padding. Reports: "rewards/chosen",
// "rewards/rejected", "rewards/accuracies", "rewards/margins", means over the pairs. ModelError for other shapes and
// for a length that is not from 1 to S.
RewardLoss outcome_reward_loss(const Tensor& scores, std::span<const std::int64_t> lengths);

// `logits` [B, S, V], `targets` int32 [B, S], -100 without a label. `labels`: the possible ids, each from 0 to
// V - 1; empty: every id. Reports: "rewards/accuracies", the share of labels that are the most likely one; 0 if
// there are none.
RewardLoss process_reward_loss(const Tensor& logits, const Tensor& targets, std::span<const std::int32_t> labels);

}  // namespace loom::objective
