// Preference losses: how much more likely a model makes chosen answers than rejected ones (DPO, IPO, SimPO).
//
// Letters   n pairs; row i is the chosen answer of pair i, row n + i the rejected one. p_i = log p(answer | prompt) of
//           the policy, r_i of the reference model, L_i the tokens of the answer; D = chosen less rejected.
// DPO       h = D(p) - D(r). sigmoid: -(1 - e) log s(b h) - e log s(-b h); hinge: max(0, 1 - b h).
//           ipo: (h - 1 / (2 b))^2 with p / L and r / L instead of p and r.
// SimPO     h = D(p / L) - gamma_beta_ratio; sigmoid and hinge as above, ipo with this h. No reference model.
// SFT term  pref_ftx * (-p / L) of the chosen answer is added; none up to 1e-6.
// Loss      the mean over the pairs. b = beta, e = label_smoothing, s the logistic function.
// Rewards   b (p - r) for DPO, b p / L for SimPO; accuracy: the share of pairs whose chosen answer has the greater one.
// Source    MindSpeed-LLM tasks/posttrain/{dpo,simpo}, trl DPOTrainer and CPOTrainer.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/tensor/tensor.h"

namespace loom::objective {

enum class PreferenceLossType : std::uint8_t { kSigmoid, kHinge, kIpo };

struct PreferenceOptions {
  PreferenceLossType loss_type = PreferenceLossType::kSigmoid;
  double beta = 0.1;             // above 0
  double label_smoothing = 0.0;  // from 0 to below 0.5
  double pref_ftx = 0.0;
  bool simpo = false;
  double gamma_beta_ratio = 1.4;  // for SimPO

  bool has_reference() const { return !simpo; }
};

// One number per row: 2 n of each.
struct AnswerFigures {
  std::span<const double> reference;  // log-probabilities of the reference model; empty for SimPO
  std::span<const std::int64_t> tokens;
};

struct PreferenceLoss {
  Tensor loss;  // one element, recorded on the tape
  // "rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected":
  // means over the pairs.
  std::vector<std::pair<std::string, double>> reports;
};

// `log_probs` [2 n], from ops::sequence_log_probs. ModelError for an odd number of rows, or figures for another
// number of rows; an answer without tokens has the average 0.
PreferenceLoss preference_loss(const Tensor& log_probs, const AnswerFigures& answers, const PreferenceOptions& options);

}  // namespace loom::objective
