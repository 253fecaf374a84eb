// Objective: the training goal of a job: the samples, the forward with its loss, the auxiliary model of the loss,
// and its unit. Made once per process from the job and the callbacks of its program (train/inputs.h); const
// afterwards, so that the rank threads of a process share it.
//
// RankObjective: the objective on one rank, with the auxiliary model of the loss: a second model, frozen, whose
// log-probabilities of a batch are computed when the batch is taken, or looked up by its sample numbers. The
// forward finds them in the batch (reference_log_probs()).
//
// Threads  a RankObjective belongs to the rank's host thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/step.h"
#include "engine/data/token_batches.h"
#include "engine/nn/module.h"
#include "engine/objective/options.h"
#include "engine/objective/reference_log_probs.h"
#include "engine/objective/stage.h"

namespace loom::objective {

// The auxiliary that the loss needs beside the model.
enum class Auxiliary : std::uint8_t {
  kNone,
  kModel,   // a reference model, on every rank
  kValues,  // its log-probabilities, computed before training or read (--ref-logps-cache)
};

struct Objective {
  data::DataLoaders loaders = {};  // with a train loader, unless --skip-train
  data::ForwardStep forward_step = {};
  Auxiliary auxiliary = Auxiliary::kNone;
  std::string unit = {};             // "nats per byte", printed behind evaluations
  std::int64_t loss_chunk_size = 0;  // data::DataIterator::loss_chunk_size()
};

class RankObjective {
 public:
  // `objective` outlives it.
  explicit RankObjective(const Objective& objective) : objective_(objective) {}

  // Replaces the earlier one.
  void set_auxiliary(std::shared_ptr<nn::Module> model) { model_ = std::move(model); }
  void set_auxiliary(ReferenceLogProbs values) { values_ = std::move(values); }

  // Calls the forward step. Its exceptions pass through.
  data::ForwardResult forward(data::DataIterator& data, nn::Module& model) const;

 private:
  void complete(data::Batch& batch) const;

  const Objective& objective_;
  std::shared_ptr<nn::Module> model_;  // null unless kModel
  std::optional<ReferenceLogProbs> values_;
};

// The reference model's log-probabilities of a batch of pairs (preference_step.h), from the auxiliary. Zeros for a
// batch of shapes without values. ConfigError if the job has no auxiliary.
std::vector<double> reference_log_probs(const data::Batch& batch);

// --- The objective of a stage, for programs whose flags describe model and data

// `tokens`: the tokenizer's ids. Without --data-path and similar flags: batches of shapes without values.
data::DataLoaders loaders_of(const StageRow& stage, const data::DataOptions& data, const data::TokenIds& tokens,
                             const data::RunLength& run);
data::ForwardStep forward_step_of(const StageRow& stage, const ObjectiveOptions& options, const data::TokenIds& tokens);
// The unit that evaluations print behind the loss.
std::string unit_of(const StageRow& stage, const data::DataOptions& data);

}  // namespace loom::objective
